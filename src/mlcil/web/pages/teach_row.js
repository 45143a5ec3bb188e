// One row of proposals. Under the pointer it keeps its photos in place; it takes the newest when the pointer has left or
// when it was confirmed. Where photos are staged, clicks only change the selection, and confirming marks them.

import { Hold } from './teach_hold.js';
import { fillTile, makeTile } from './teach_tile.js';
import { announce } from './teach_words.js';

const MOST = 12;
const REST = 500; // milliseconds in which a second click cannot confirm photos that nobody has seen yet

export class Row {
  #rows;
  #shown = [];
  #newest = [];
  #staged = new Map();
  #most = 0; // photos that there was room for since the label was picked
  #isNew = true;
  #active = 0;
  #isResting = false;

  constructor(rows, { key, title, text, isStaged = false }) {
    this.#rows = rows;
    this.key = key;
    this.isStaged = isStaged;
    this.#build(title, text);
    this.hold = new Hold(this.element, () => this.#catchUp());
    this.grid.owner = this;
    this.grid.addEventListener('focusin', event => this.#focused(event.target.closest('.tile')));
  }

  #build(title, text) {
    this.element = document.createElement('section');
    this.element.className = `proposals ${this.key}`;
    this.element.id = `row-${this.key}`;
    const head = this.element.appendChild(document.createElement('header'));
    head.append(made('h2', title, `row-${this.key}-title`), made('p', text), this.#makeButton());
    this.grid = this.element.appendChild(document.createElement('div'));
    this.grid.setAttribute('role', 'grid');
    this.grid.setAttribute('aria-multiselectable', 'true');
    this.grid.setAttribute('aria-labelledby', `row-${this.key}-title`);
    this.line = this.grid.appendChild(document.createElement('div'));
    this.line.setAttribute('role', 'row');
    this.line.className = 'row-tiles';
    this.note = this.element.appendChild(made('p', 'Nothing here at the moment.'));
    this.note.className = 'soft empty';
  }

  #makeButton() {
    this.button = made('button', '', `confirm-${this.key}`);
    this.button.type = 'button';
    this.button.className = this.isStaged ? 'primary' : '';
    this.button.addEventListener('click', () => this.confirm());
    return this.button;
  }

  // Starts anew, for another label.
  clear() {
    this.#shown = [];
    this.#newest = [];
    this.#isNew = true;
    this.#staged.clear();
    this.#draw();
  }

  take(tiles) {
    // The room of the label before is kept until now, so that picking another does not make the page jump.
    if (this.#isNew) this.#most = 0;
    this.#isNew = false;
    this.#newest = tiles;
    if (this.hold.isHeld && this.#shown.length) this.refresh(tiles);
    else this.#catchUp();
  }

  // The photos stay; scores that have changed are shown.
  refresh(tiles) {
    const newer = new Map(tiles.map(tile => [tile.id, tile]));
    this.#shown = this.#shown.map(tile => newer.get(tile.id) ?? tile);
    this.#draw();
  }

  #catchUp() {
    if (this.#newest === this.#shown) return;
    if (this.#hasOthers()) this.#staged.clear();
    this.#shown = this.#newest;
    this.#rows.steady(() => this.#draw());
  }

  #hasOthers() {
    return this.#newest.map(tile => tile.id).join() !== this.#shown.map(tile => tile.id).join();
  }

  #stagedOf(tile) {
    return this.isStaged ? this.#staged.get(tile.id) ?? 'yes' : null;
  }

  #draw() {
    const hadFocus = this.line.contains(document.activeElement);
    this.#most = Math.max(this.#most, this.#shown.length);
    this.#active = Math.max(0, Math.min(this.#active, this.#shown.length - 1));
    while (this.line.querySelectorAll('.tile').length > this.#shown.length) this.cells.at(-1).remove();
    while (this.cells.length < this.#shown.length) this.line.insertBefore(makeTile(), this.line.children[this.cells.length] ?? null);
    this.#keepRoom();
    this.fill();
    this.grid.setAttribute('aria-colcount', String(this.#shown.length));
    this.note.hidden = this.#shown.length > 0;
    if (hadFocus && !this.line.contains(document.activeElement)) (this.cells[this.#active] ?? this.button).focus();
  }

  get cells() {
    return [...this.line.querySelectorAll('.tile')];
  }

  // A row does not shrink while a label is taught: what is below it stays where it is.
  #keepRoom() {
    const wanted = this.#most - this.#shown.length;
    const rooms = this.line.querySelectorAll('.room');
    for (const room of [...rooms].slice(wanted)) room.remove();
    for (let index = rooms.length; index < wanted; index += 1) {
      const room = this.line.appendChild(document.createElement('div'));
      room.className = 'room';
    }
    this.grid.hidden = this.#most === 0;
  }

  fill() {
    this.cells.forEach((cell, index) => {
      const tile = this.#shown[index];
      cell.index = index;
      cell.tabIndex = index === this.#active ? 0 : -1;
      cell.setAttribute('aria-colindex', String(index + 1));
      fillTile(cell, tile, this.#rows.store.markOf(tile), this.#stagedOf(tile));
    });
    this.#showButton();
  }

  #showButton() {
    const open = this.#open();
    const no = open.filter(({ mark }) => mark === 'no').length;
    const yes = open.filter(({ mark }) => mark === 'yes').length;
    if (this.isStaged) this.button.textContent = open.length ? `Confirm: ${yes} yes${no ? `, ${no} no` : ''}` : 'Confirm';
    else this.button.textContent = 'Show others';
    const isPointless = this.isStaged ? !open.length : !this.#hasOthers();
    this.button.disabled = isPointless || !this.#rows.store.canMark;
  }

  // What confirming would say: photos that are marked already are not asked about again.
  #open() {
    return this.#shown
      .filter(tile => this.isStaged && !this.#rows.store.markOf(tile))
      .map(tile => ({ tile, mark: this.#stagedOf(tile) }))
      .filter(({ mark }) => mark !== 'skip');
  }

  async confirm() {
    if (this.#isResting || (this.button.disabled && this.isStaged)) return;
    if (!this.isStaged) return this.#catchUp();
    this.#isResting = true;
    const isTaken = await this.#rows.actions.mark(this.#open());
    if (isTaken) this.#catchUp();
    setTimeout(() => { this.#isResting = false; }, REST);
  }

  act(cell, mark) {
    if (!this.isStaged || this.#rows.store.markOf(cell.tile)) {
      const now = this.#rows.store.markOf(cell.tile) === mark || mark === 'unknown' ? null : mark;
      this.#rows.actions.mark([{ tile: cell.tile, mark: now }]);
      return;
    }
    const was = this.#stagedOf(cell.tile);
    const staged = mark === 'unknown' ? 'skip' : mark === 'yes' && was === 'yes' ? 'no' : mark;
    this.#staged.set(cell.tile.id, staged);
    this.fill();
    announce(cell.getAttribute('aria-label'));
  }

  #focused(cell) {
    if (!cell) return;
    this.cells.forEach(other => { other.tabIndex = -1; });
    cell.tabIndex = 0;
    this.#active = cell.index;
  }

  move(cell, key) {
    const columns = this.#columns();
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns,
      Home: -MOST, End: MOST, PageUp: -MOST, PageDown: MOST,
    };
    if (!(key in steps)) return false;
    const target = cell.index + steps[key];
    if (Math.abs(steps[key]) === columns && columns > 1 && (target < 0 || target >= this.cells.length)) return true;
    this.cells[Math.max(0, Math.min(target, this.cells.length - 1))].focus();
    return true;
  }

  // The likely photos wrap, by the room that there is.
  #columns() {
    const top = this.cells[0]?.offsetTop;
    return this.cells.filter(cell => cell.offsetTop === top).length;
  }

  focusOn(id) {
    this.cells.find(cell => cell.dataset.id === id)?.focus();
  }

  neighbour(id, step) {
    const index = this.#shown.findIndex(tile => tile.id === id);
    return index < 0 ? null : this.#shown[index + step] ?? null;
  }
}

function made(name, text, id) {
  const result = document.createElement(name);
  result.textContent = text;
  if (id) result.id = id;
  return result;
}
