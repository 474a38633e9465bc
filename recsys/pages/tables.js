// tables: a click on a head sorts by its column
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
