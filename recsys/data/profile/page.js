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
