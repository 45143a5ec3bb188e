// On a narrow window the labels and the panel are drawers, opened by the tabs at the lower edge.

import { element } from './teach_words.js';

const narrow = window.matchMedia('(max-width: 999px)');
let open = null;

function draw() {
  for (const name of ['labels', 'panel']) {
    const drawer = element(name);
    drawer.classList.toggle('open', open === name);
    drawer.inert = narrow.matches && open !== name;
  }
  element('middle').inert = narrow.matches && open !== null;
  for (const tab of document.querySelectorAll('[data-tab]')) {
    tab.setAttribute('aria-pressed', String(tab.dataset.tab === (open ?? 'photos')));
  }
}

function choose(name) {
  open = name === 'photos' || name === open ? null : name;
  draw();
}

export function closeDrawer() {
  if (open !== null) choose(open);
}

export function connectDrawers() {
  for (const tab of document.querySelectorAll('[data-tab]')) tab.addEventListener('click', () => choose(tab.dataset.tab));
  narrow.addEventListener('change', draw);
  draw();
}
