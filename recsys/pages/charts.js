// charts: values of all lines at the pointer, the nearest first, read from the SVG's points and scales
const scale = text => {
  const [a, b, pa, pb, log] = text.split(',').map(Number);
  return at => { const v = a + (at - pa) / (pb - pa) * (b - a); return log ? 10 ** v : v; };
};
const shown = v => Number.isInteger(v) || Math.abs(v) >= 100 ? Math.round(v).toLocaleString('en') : v.toPrecision(4);
for (const svg of document.querySelectorAll('svg.plot')) {
  const x = scale(svg.dataset.x), y = scale(svg.dataset.y), rule = svg.querySelector('.rule');
  let lines;
  svg.addEventListener('mousemove', e => {
    lines ??= [...svg.querySelectorAll('path[data-n]')].map(path => ({
      name: path.dataset.n,
      points: path.getAttribute('d').slice(1).split('L').map(p => p.split(' ').map(Number)),
    }));
    const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const near = lines.map(({name, points}) => {
      const [px, py] = points.reduce((a, b) => Math.abs(b[0] - at.x) < Math.abs(a[0] - at.x) ? b : a);
      return {name, px, py};
    }).filter(p => Math.abs(p.px - at.x) < 60).sort((a, b) => Math.abs(a.py - at.y) - Math.abs(b.py - at.y));
    rule.style.display = near.length ? '' : 'none';
    if (!near.length) { tip.style.display = 'none'; return; }
    rule.setAttribute('transform', `translate(${near[0].px} 0)`);
    const more = near.length > 8 ? `\n${near.length - 8} more` : '';
    const values = near.slice(0, 8).map(p => `${p.name}: ${shown(y(p.py))}`).join('\n');
    show(`${svg.dataset.of} ${shown(x(near[0].px))}\n${values}${more}`, e);
  });
  svg.addEventListener('mouseleave', () => { rule.style.display = 'none'; });
}
// highlight a run in all pictures while the pointer is on it in a legend or table
const only = document.head.appendChild(document.createElement('style'));
document.addEventListener('mouseover', e => {
  const of = e.target.closest('[data-r]')?.dataset.r;
  only.textContent = of === undefined ? '' : `svg [data-r]:not([data-r="${of}"]), .legend [data-r]:not([data-r="${of}"]) { opacity: .12; }`;
});
