// The grid of all photos. Only the lines in sight are in the document, so that 20,000 photos scroll as smoothly as 20.

import { emptinessOf } from './teach_filters.js';
import { Hold } from './teach_hold.js';
import { Lines } from './teach_lines.js';
import { PhotoPages } from './teach_pages.js';
import { emptyTile, fillTile } from './teach_tile.js';
import { announce, count, element, number, tell } from './teach_words.js';

const GAP = 8;
const AHEAD = 3; // lines kept ready above and below

export class PhotoGrid {
  #store;
  #actions;
  #scroller = element('middle');
  #element = element('grid');
  #tools = element('tools');
  #pages = new PhotoPages((page, answer) => this.#arrived(answer), error => this.#failed(error));
  #lines = new Lines(this.#element);
  #width = 0;
  #columns = 1;
  #size = 150;
  #active = 0;
  #isOutdated = false;
  #isNewList = true;
  #drawing = 0;
  #fetching = 0;

  constructor(store, actions) {
    this.#store = store;
    this.#actions = actions;
    this.#element.owner = this;
    this.hold = new Hold(this.#element, () => this.#catchUp());
    this.#scroller.addEventListener('scroll', () => this.#drawSoon(), { passive: true });
    new ResizeObserver(() => this.#measure()).observe(this.#element);
    this.#element.addEventListener('focusin', event => this.#focused(event.target.closest('.tile')));
    store.on('marks', () => this.#fillAll());
  }

  // Shows the list that the store's filter asks for, from its start.
  show() {
    this.#isOutdated = false;
    this.#isNewList = true;
    this.#offerSorting();
    this.#element.setAttribute('aria-busy', 'true');
    this.#pages.ask(this.#query());
  }

  #query() {
    const { show, like, search } = this.#store.filter;
    const label = this.#store.knownLabel;
    // Tagged and marked are said of a label.
    return { show: label || show === 'untagged' ? show : 'all', label, like, search };
  }

  // Scores have changed, and with them the order: taken over at once, or when the pointer has left.
  outdate() {
    this.#isOutdated = true;
    if (this.hold.isHeld) this.#offerSorting();
    else this.#catchUp();
  }

  #catchUp() {
    if (this.#isOutdated) this.sortAgain();
  }

  sortAgain() {
    this.#isOutdated = false;
    this.#offerSorting();
    this.#pages.renew(this.#query());
    this.#draw();
  }

  #offerSorting() {
    element('sort-again').hidden = !(this.#isOutdated && this.hold.isHeld && this.#store.label !== null);
  }

  #failed(error) {
    this.#element.removeAttribute('aria-busy');
    if (error.status) tell(error.message, true);
  }

  #arrived(answer) {
    this.#store.learnMarks(answer.photos, answer.sequence);
    this.#element.removeAttribute('aria-busy');
    element('photos-count').textContent = number(answer.total);
    if (this.#isNewList) this.#startList(answer.total);
    this.#active = Math.max(0, Math.min(this.#active, answer.total - 1));
    this.#layOut();
  }

  #startList(total) {
    this.#isNewList = false;
    this.#active = 0;
    const top = this.#top();
    if (top < this.#tools.offsetHeight) this.#scroller.scrollTop += top - this.#tools.offsetHeight - 4;
    announce(total ? `${count(total, 'photo')} shown.` : 'No photo is shown.');
  }

  // Where the grid begins, from the upper edge of what is in sight.
  #top() {
    return this.#element.getBoundingClientRect().top - this.#scroller.getBoundingClientRect().top;
  }

  #measure() {
    const width = this.#element.clientWidth;
    if (!width || width === this.#width) return;
    this.#width = width;
    const wanted = width < 520 ? 108 : 140;
    this.#columns = Math.max(2, Math.floor((width + GAP) / (wanted + GAP)));
    this.#size = Math.floor((width - GAP * (this.#columns - 1)) / this.#columns);
    this.#element.style.setProperty('--columns', this.#columns);
    this.#element.style.setProperty('--size', `${this.#size}px`);
    this.#lines.keep(new Set());
    this.#lines.pitch = this.#size + GAP;
    this.#layOut();
  }

  #layOut() {
    const lines = Math.ceil(this.#pages.total / this.#columns);
    this.#element.style.height = `${Math.max(0, lines * (this.#size + GAP) - GAP)}px`;
    this.#element.setAttribute('aria-rowcount', String(lines));
    this.#element.setAttribute('aria-colcount', String(this.#columns));
    this.#showEmptiness();
    this.#draw();
  }

  #showEmptiness() {
    element('grid-empty').hidden = this.#pages.total > 0 || this.#isNewList;
    element('grid-empty').textContent = emptinessOf(this.#store.filter);
  }

  #drawSoon() {
    this.#drawing ||= requestAnimationFrame(() => this.#draw());
  }

  #inSight() {
    const pitch = this.#size + GAP;
    const top = -this.#top();
    const last = Math.ceil(this.#pages.total / this.#columns);
    const first = Math.floor(top / pitch);
    const end = Math.ceil((top + this.#scroller.clientHeight) / pitch);
    return [Math.max(0, first - AHEAD), Math.min(last, end + AHEAD)];
  }

  #draw() {
    cancelAnimationFrame(this.#drawing);
    this.#drawing = 0;
    const [first, end] = this.#inSight();
    const wanted = new Set();
    for (let line = first; line < end; line += 1) wanted.add(line);
    // The line with the tab stop stays, so that the focus is not lost by scrolling.
    if (this.#pages.total) wanted.add(Math.floor(this.#active / this.#columns));
    this.#lines.keep(wanted);
    for (const line of wanted) this.#drawLine(line);
    // Dragging the scroll bar passes many pages; only where it comes to rest is fetched.
    clearTimeout(this.#fetching);
    this.#fetching = setTimeout(() => this.#pages.want(first * this.#columns, Math.max(end, 1) * this.#columns), 60);
  }

  #drawLine(line) {
    const row = this.#lines.get(line) ?? this.#lines.make(line);
    const first = line * this.#columns;
    const length = Math.min(this.#columns, this.#pages.total - first);
    this.#lines.fit(row, length);
    [...row.children].forEach((cell, column) => this.#fill(cell, first + column));
  }

  #fill(cell, index) {
    const tile = this.#pages.at(index);
    cell.index = index;
    cell.tabIndex = index === this.#active ? 0 : -1;
    if (tile) fillTile(cell, tile, this.#store.markOf(tile));
    else emptyTile(cell);
  }

  #fillAll() {
    for (const cell of this.#element.querySelectorAll('.tile')) this.#fill(cell, cell.index);
  }

  #cellAt(index) {
    return this.#lines.get(Math.floor(index / this.#columns))?.children[index % this.#columns] ?? null;
  }

  #focused(cell) {
    if (!cell) return;
    const before = this.#cellAt(this.#active);
    if (before) before.tabIndex = -1;
    this.#active = cell.index;
    cell.tabIndex = 0;
  }

  // Moves the focus. Returns whether the key is one that moves.
  move(cell, key) {
    const page = Math.max(1, Math.floor(this.#scroller.clientHeight / (this.#size + GAP)) - 1) * this.#columns;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.#columns, ArrowDown: this.#columns,
      PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity,
    };
    if (!(key in steps)) return false;
    const target = cell.index + steps[key];
    const isSideways = Math.abs(steps[key]) === 1 || !Number.isFinite(steps[key]);
    if (isSideways || key.startsWith('Page') || (target >= 0 && target < this.#pages.total)) this.focus(target);
    return true;
  }

  focus(index = this.#active) {
    this.#active = Math.max(0, Math.min(index, this.#pages.total - 1));
    this.#bringIntoSight(Math.floor(this.#active / this.#columns));
    this.#draw();
    this.#cellAt(this.#active)?.focus({ preventScroll: true });
  }

  #bringIntoSight(line) {
    const top = this.#top() + line * (this.#size + GAP);
    const covered = this.#tools.offsetHeight + GAP;
    const below = top + this.#size + GAP - this.#scroller.clientHeight;
    if (top < covered) this.#scroller.scrollTop += top - covered;
    else if (below > 0) this.#scroller.scrollTop += below;
  }

  act(cell, mark) {
    const now = this.#store.markOf(cell.tile) === mark ? null : mark;
    this.#actions.mark([{ tile: cell.tile, mark: mark === 'unknown' ? null : now }]);
  }

  // The photo before or after one, for leafing through; null at the ends.
  neighbour(id, step) {
    const cell = [...this.#element.querySelectorAll('.tile')].find(other => other.dataset.id === id);
    const tile = cell ? this.#pages.at(cell.index + step) : null;
    if (tile) {
      this.#active = cell.index + step;
      this.#bringIntoSight(Math.floor(this.#active / this.#columns));
      this.#draw();
    }
    return tile;
  }

  focusOn(id) {
    [...this.#element.querySelectorAll('.tile')].find(cell => cell.dataset.id === id)?.focus({ preventScroll: true });
  }

  // Marks in the grid are sent one by one; there is nothing to confirm.
  confirm() {}
}
