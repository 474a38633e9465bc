for (const table of document.querySelectorAll('table.sortable')) {
  table.tHead.addEventListener('click', e => {
    const head = e.target.closest('th'), up = head.classList.contains('down');
    const at = head.cellIndex, body = table.tBodies[0];
    const key = row => row.cells[at].dataset.v ?? row.cells[at].textContent;
    const compare = (a, b) => isNaN(key(a)) ? key(b).localeCompare(key(a)) : key(a) - key(b);
    for (const th of table.tHead.querySelectorAll('th')) th.classList.remove('up', 'down');
    head.classList.add(up ? 'up' : 'down');
    body.append(...[...body.rows].sort((a, b) => up ? compare(a, b) : compare(b, a)));
  });
}
const open = () => {
  const at = document.getElementById(location.hash.slice(1));
  if (at?.matches('details')) { at.open = true; at.scrollIntoView(); }
};
addEventListener('hashchange', open);
document.addEventListener('click', e => e.target.closest('a[href="' + location.hash + '"]') && open());
open();
const all = document.getElementById('all');
all.addEventListener('click', () => {
  const folds = [...document.querySelectorAll('details.feature')], some = folds.some(d => !d.open);
  for (const d of folds) d.open = some;
  all.textContent = some ? 'collapse all' : 'expand all';
});
