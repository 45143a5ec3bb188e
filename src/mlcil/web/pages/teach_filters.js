// Which photos the grid shows, and the address that keeps it: the picked label and the filter are in the page's hash.

import { thumbOf } from './teach_api.js';
import { announce, element, shortName } from './teach_words.js';

const TYPING = 250; // milliseconds without a key before a search starts

export class Filters {
  #store;
  #grid;
  #typing = 0;

  constructor(store, grid) {
    this.#store = store;
    this.#grid = grid;
    const buttons = element('filters');
    buttons.addEventListener('click', event => this.#clicked(event.target.closest('[data-show]')));
    buttons.addEventListener('keydown', event => this.#key(event));
    element('like-chip').addEventListener('click', () => this.#change({ like: null }));
    element('search').addEventListener('input', () => this.#typed());
    element('search').addEventListener('keydown', event => this.#searchKey(event));
    element('middle').addEventListener('scroll', () => this.#offerRows(), { passive: true });
    element('see-rows').addEventListener('click', () => element('middle').scrollTo({ top: 0, behavior: 'smooth' }));
    for (const event of ['filter', 'label', 'view']) store.on(event, () => this.#draw());
  }

  #change(changes) {
    this.#store.setFilter(changes);
    this.remember();
    this.#grid.show();
  }

  #clicked(button) {
    if (button && !button.disabled) this.#change({ show: button.dataset.show });
  }

  // In a group of radio buttons the arrow keys choose.
  #key(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = this.#buttons().filter(button => !button.disabled);
    const next = buttons[(buttons.indexOf(event.target) + step + buttons.length) % buttons.length];
    this.#clicked(next);
    next.focus();
    event.preventDefault();
  }

  #buttons() {
    return [...element('filters').querySelectorAll('[data-show]')];
  }

  // Shows the photos that are like one.
  like(tile) {
    announce(`Photos similar to ${shortName(tile.name)}.`);
    this.#change({ like: tile.id, show: 'all', search: '' });
    element('photos').scrollIntoView({ block: 'start' });
  }

  #typed() {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.#change({ search: element('search').value.trim() }), TYPING);
  }

  #searchKey(event) {
    if (event.key === 'Enter' || event.key === 'ArrowDown') {
      event.preventDefault();
      this.#grid.focus(0);
    }
  }

  #draw() {
    const { show, like, search } = this.#store.filter;
    const isOfLabel = this.#store.knownLabel !== null;
    for (const button of this.#buttons()) {
      const isChosen = button.dataset.show === show;
      button.disabled = !isOfLabel && ['tagged', 'marked'].includes(button.dataset.show);
      button.setAttribute('aria-checked', String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
    const chip = element('like-chip');
    chip.hidden = like === null;
    chip.setAttribute('aria-label', 'Similar to one photo: show all again');
    if (like !== null) element('like-image').src = thumbOf(like);
    const box = element('search');
    if (document.activeElement !== box) box.value = search;
    this.#offerRows();
  }

  // The way back up, where proposals have appeared out of sight.
  #offerRows() {
    const likely = element('row-likely').getBoundingClientRect();
    const isOut = !element('rows').hidden && likely.bottom < element('middle').getBoundingClientRect().top + 60;
    element('see-rows').hidden = !isOut;
  }

  remember() {
    const values = new URLSearchParams();
    if (this.#store.label !== null) values.set('label', this.#store.label);
    const { show, like, search } = this.#store.filter;
    if (show !== 'all') values.set('show', show);
    if (like !== null) values.set('like', like);
    if (search) values.set('search', search);
    const hash = values.toString();
    if (`#${hash}` !== location.hash) history.pushState(null, '', hash ? `#${hash}` : location.pathname);
  }

  // Reads the address now and whenever the person goes back or forward; `open` shows what it says.
  restore(open) {
    const read = () => {
      const values = new URLSearchParams(location.hash.slice(1));
      const like = values.get('like');
      const show = values.get('show');
      if (values.get('label') !== this.#store.label || this.#store.view === null) this.#store.setLabel(values.get('label') || null);
      this.#store.setFilter({
        show: ['untagged', 'tagged', 'marked'].includes(show) ? show : 'all',
        like: /^[0-9a-f]{32}$/.test(like ?? '') ? like : null,
        search: values.get('search') ?? '',
      });
      open();
    };
    window.addEventListener('popstate', read);
    read();
  }
}

// Why there is no photo to show.
export function emptinessOf({ show, search }) {
  if (search) return 'No photo has that in its name or in the names of its tags.';
  if (show === 'marked') return 'No photo is marked yet.';
  if (show === 'tagged') return 'No photo has this tag.';
  return show === 'untagged' ? 'Each photo has a tag.' : 'No photo has been looked at yet.';
}
