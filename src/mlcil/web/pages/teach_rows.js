// The three rows of proposals for the picked label. In the row of likely photos each is preselected.

import { steady } from './teach_hold.js';
import { Row } from './teach_row.js';
import { announce, count, element } from './teach_words.js';

const ROWS = [
  { key: 'likely', title: 'Likely', text: 'All are selected. Click the wrong ones out, then confirm.', isStaged: true },
  { key: 'unsure', title: 'Unsure', text: 'Close calls. A mark here teaches the most.' },
  { key: 'surprising', title: 'Surprising', text: 'Your mark and the tagger disagree. Worth a second look.' },
];

export class Rows {
  #element = element('rows');
  #grid;
  #isFresh = true; // a label was picked, and its rows have not come yet
  #wantsFocus = false;

  constructor(store, actions, grid) {
    this.store = store;
    this.actions = actions;
    this.#grid = grid;
    this.rows = ROWS.map(row => new Row(this, row));
    this.#element.append(...this.rows.map(row => row.element));
    store.keepSteady = change => this.steady(change);
    store.on('label', () => this.#start());
    store.on('view', () => this.#take());
    store.on('marks', () => this.rows.forEach(row => row.fill()));
  }

  #start() {
    this.#isFresh = true;
    this.#wantsFocus = false;
    this.rows.forEach(row => row.clear());
    this.#element.hidden = this.store.label === null || this.store.isDraft;
    element('start').hidden = !this.store.isDraft;
    this.#countExamples();
    this.#element.setAttribute('aria-busy', 'true');
  }

  // How far the start has come; a line is there from the beginning, so that nothing moves.
  #countExamples() {
    const yes = this.store.view?.yes ?? 0;
    element('start-count').textContent = yes ? `${count(yes, 'example')} marked. ${this.store.view.advice}` : 'Nothing is marked yet.';
  }

  #take() {
    const { view } = this.store;
    this.#element.removeAttribute('aria-busy');
    const isEmpty = !view || Object.values(view.rows).every(row => !row.length);
    const isFirst = this.#element.hidden && !isEmpty;
    const hadFocus = this.#element.contains(document.activeElement);
    if (isEmpty) this.rows.forEach(row => row.clear());
    this.#element.hidden = isEmpty;
    element('start').hidden = !(this.store.label !== null && isEmpty);
    this.#countExamples();
    if (!isEmpty) this.rows.forEach(row => row.take(view.rows[row.key]));
    else if (hadFocus) this.#grid.focus();
    this.#isFresh = false;
    if (this.#wantsFocus) this.#focusFirst();
    if (isFirst) announce('There are suggestions above the photos now.');
  }

  // Gives the focus to the first likely photo, as soon as there is one.
  focusSoon() {
    this.#wantsFocus = true;
  }

  #focusFirst() {
    this.#wantsFocus = false;
    this.rows.find(row => row.cells.length)?.cells[0].focus({ preventScroll: true });
  }

  // Changes rows without moving what the pointer is over, or what has the focus.
  steady(change) {
    const parts = [{ hold: this.#grid.hold, element: element('grid') }, ...this.rows];
    const held = parts.find(({ hold }) => hold.isPointedAt) ?? parts.find(({ hold }) => hold.isHeld);
    steady(element('middle'), this.#isFresh ? null : held?.element ?? null, change);
  }
}
