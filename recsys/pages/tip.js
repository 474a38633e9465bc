const tip = document.getElementById('tip');
const show = (text, e) => {
  tip.style.display = 'block';
  tip.textContent = text;
  tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(e.clientY + 16, innerHeight - tip.offsetHeight - 8) + 'px';
};
document.addEventListener('mousemove', e => {
  const at = e.target.closest('[data-t]');
  if (at) show(at.dataset.t, e);
  else if (!e.target.closest('.plot')) tip.style.display = 'none';  // charts show their own tooltips
});
