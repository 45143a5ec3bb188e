// What a person can do that changes something on the server. Requests go out one after the other, in the order of clicks.

import * as api from './teach_api.js';
import { PAGE } from './teach_pages.js';
import { announce, count, shortName, tell } from './teach_words.js';

const MOST_MARKS = 2000;

export class Actions {
  #store;
  #queue = Promise.resolve();
  #refreshing = 0;

  constructor(store) {
    this.#store = store;
  }

  // Puts a request behind those that are under way.
  #enqueue(work) {
    const run = async () => {
      this.#store.writes += 1;
      try {
        return await work();
      } finally {
        this.#store.writes += 1;
      }
    };
    const result = this.#queue.then(run);
    this.#queue = result.catch(() => {});
    return result;
  }

  // Marks photos of a label. Returns a promise of whether the server took it.
  mark(tiles, label = this.#store.label) {
    if (!this.#mayMark(label)) return Promise.resolve(false);
    if (label === this.#store.label && tiles.every(({ tile, mark }) => this.#store.markOf(tile) === mark)) return Promise.resolve(true);
    const step = { label, tiles, owner: Symbol(label) };
    if (label === this.#store.label) {
      this.#store.showPending(tiles.map(({ tile, mark }) => [tile.id, mark]), step.owner);
    }
    announce(sayMarks(tiles, label));
    return this.#send(step);
  }

  #mayMark(label) {
    if (label === null) tell('Pick a label first, or type a new one.');
    else if (this.#store.facts(label)?.can_change === false) tell(`The label ${label} cannot be changed.`);
    else return true;
    return false;
  }

  async #send({ label, tiles, owner }) {
    const marks = { yes: [], no: [], unknown: [] };
    for (const { tile, mark } of tiles) marks[mark ?? 'unknown'].push(tile.id);
    try {
      const view = await this.#enqueue(() => api.mark(label, marks));
      this.#store.endPending(owner, label === this.#store.label);
      this.#store.setView(view);
      this.refreshSoon();
      return true;
    } catch (error) {
      this.#store.endPending(owner, false);
      tell(`Taken back: ${sayMarks(tiles, label)} ${error.message}`, true);
      return false;
    }
  }

  undo = () => this.#step(api.undo, 'Undone', 'There is nothing to undo.');
  redo = () => this.#step(api.redo, 'Done again', 'There is nothing to redo.');

  async #step(request, done, nothing) {
    const answer = await this.#attempt(() => request(this.#store.knownLabel));
    if (!answer) return;
    tell(answer.undone ? `${done}: ${answer.undone}` : nothing);
    this.#changedElsewhere(answer.state, answer.view);
  }

  async setThreshold(value) {
    const label = this.#store.label;
    const view = await this.#attempt(() => api.threshold(label, value));
    if (view) this.#store.setView(view);
    else this.#store.tell('view'); // the slider goes back to what holds
    this.refreshSoon();
  }

  // Renames, merges or deletes; errors are the dialog's to show.
  async changeLabels(request) {
    const state = await this.#enqueue(request);
    this.#store.sequence = state.sequence;
    this.#store.setState(state);
    return state;
  }

  async save(name) {
    const answer = await this.#enqueue(() => api.save(name));
    this.#store.sequence = answer.state.sequence;
    this.#store.setState(answer.state);
    return answer;
  }

  exportAs(kind, version) {
    return this.#enqueue(() => api.exportAs(kind, version));
  }

  async #attempt(request) {
    try {
      return await this.#enqueue(request);
    } catch (error) {
      tell(error.message, true);
      return null;
    }
  }

  // Counts beside the labels and what can be undone come with the state, a moment after the marks.
  refreshSoon() {
    clearTimeout(this.#refreshing);
    this.#refreshing = setTimeout(() => this.refresh(), 150);
  }

  // Asks for the state. If something changed that was not done here, everything shown is asked for again.
  async refresh() {
    const writes = this.#store.writes;
    const state = await api.state();
    if (writes !== this.#store.writes) return;
    const isNews = this.#store.state !== null && state.sequence !== this.#store.sequence;
    if (isNews) this.#changedElsewhere(state, null);
    else this.#store.setState(state);
    this.#store.sequence = state.sequence;
  }

  #changedElsewhere(state, view) {
    this.#store.sequence = state.sequence;
    this.#store.setState(state);
    if (view && view.label === this.#store.label) this.#store.setView(view);
    else this.loadView();
    this.#loadMarks();
    this.#store.tell('outdated');
  }

  // Asks for all marks of the label, as those that are shown may have been undone.
  async #loadMarks() {
    const { writes, knownLabel: label } = this.#store;
    const tiles = [];
    for (let total = label === null ? 0 : 1; tiles.length < Math.min(total, MOST_MARKS);) {
      const answer = await api.photos({ show: 'marked', label, offset: tiles.length, limit: PAGE }).catch(() => null);
      if (!answer?.photos.length) break;
      tiles.push(...answer.photos);
      total = answer.total;
    }
    if (label === this.#store.knownLabel && writes === this.#store.writes) this.#store.replaceMarks(tiles);
  }

  // Asks for the picked label's view; a label that only was typed has none.
  async loadView() {
    const { label } = this.#store;
    if (label === null) return;
    if (this.#store.facts() === null) return this.#store.dropView();
    try {
      this.#store.setView(await api.label(label));
    } catch (error) {
      if (label === this.#store.label) tell(error.message, true);
    }
  }
}

function sayMarks(tiles, label) {
  const words = { yes: 'marked yes', no: 'marked no', unknown: 'not marked any more' };
  if (tiles.length === 1) {
    const [{ tile, mark }] = tiles;
    return `${shortName(tile.name)} ${words[mark ?? 'unknown']} for ${label}.`;
  }
  const yes = tiles.filter(({ mark }) => mark === 'yes').length;
  return `${label}: yes to ${count(yes, 'photo')}, no to ${countNo(tiles)}.`;
}

const countNo = tiles => count(tiles.filter(({ mark }) => mark === 'no').length, 'photo');
