// What the page knows: the server's state, the picked label with its view, the filter, and marks.
//
// A mark is shown before the server has answered: `pending` holds those, `marks` those that the server has told.

export class Store extends EventTarget {
  state = null;
  view = null;
  label = null;
  filter = { show: 'all', like: null, search: '' };
  sequence = -1;
  writes = 0; // Started and ended requests that change something; a poll that overlaps with one proves nothing.
  #marks = new Map();
  #pending = new Map();
  #isComplete = false; // whether `marks` holds all marks of the label

  // How changes to the page are made; replaced by a way that keeps what is under the pointer in its place.
  keepSteady = change => change();

  tell(what) {
    this.keepSteady(() => this.dispatchEvent(new Event(what)));
  }

  on(what, listener) {
    this.addEventListener(what, listener);
  }

  facts(name = this.label) {
    return this.state?.labels.find(label => label.name === name) ?? null;
  }

  // A label that was typed and has no mark yet, or none any more: the server does not know it.
  get isDraft() {
    const hasMarks = this.view !== null && this.view.yes + this.view.no > 0;
    return this.label !== null && !hasMarks && this.facts() === null;
  }

  get knownLabel() {
    return this.label !== null && !this.isDraft ? this.label : null;
  }

  get canMark() {
    return this.label !== null && this.facts()?.can_change !== false;
  }

  setState(state) {
    this.state = state;
    this.tell('state');
  }

  setLabel(name) {
    this.label = name;
    this.view = null;
    this.#marks.clear();
    this.#pending.clear();
    this.#isComplete = false;
    this.tell('label');
  }

  setFilter(changes) {
    this.filter = { ...this.filter, ...changes };
    this.tell('filter');
  }

  // A view that is older than what is shown arrives when answers overtake each other.
  setView(view) {
    this.sequence = Math.max(this.sequence, view.sequence);
    if (view.label !== this.label || (this.view && view.sequence < this.view.sequence)) return;
    this.view = view;
    for (const row of Object.values(view.rows)) this.learnMarks(row, view.sequence);
    this.tell('view');
  }

  dropView() {
    this.view = null;
    this.tell('view');
  }

  learnMarks(tiles, sequence) {
    if (sequence < this.sequence) return;
    for (const tile of tiles) this.#marks.set(tile.id, tile.mark);
  }

  // All marks of the label: photos that are not among these have none, whatever was known of them before.
  replaceMarks(tiles) {
    this.#marks = new Map(tiles.map(tile => [tile.id, tile.mark]));
    this.#isComplete = true;
    this.tell('marks');
  }

  markOf(tile) {
    if (this.#pending.has(tile.id)) return this.#pending.get(tile.id).mark;
    if (this.#marks.has(tile.id)) return this.#marks.get(tile.id);
    return this.#isComplete ? null : tile.mark;
  }

  // Shows marks at once. `owner` is the request that they belong to; a later one for the same photo wins.
  showPending(marks, owner) {
    for (const [id, mark] of marks) this.#pending.set(id, { mark, owner });
    this.tell('marks');
  }

  // Ends the marks of a request: kept if the server took them, else as they were before.
  endPending(owner, isTaken) {
    for (const [id, { mark, owner: current }] of this.#pending) {
      if (current !== owner) continue;
      this.#pending.delete(id);
      if (isTaken) this.#marks.set(id, mark);
    }
    this.tell('marks');
  }
}
