// The photos that a filter shows, fetched in pages and kept. Photos are named by their place in the list.

import * as api from './teach_api.js';

export const PAGE = 200;

export class PhotoPages {
  total = 0;
  #query = { show: 'all' };
  #pages = new Map();
  #fetching = new Set();
  #stale = new Set();
  #turn = 0; // counts queries, so that an answer to an earlier one is dropped
  #arrived;
  #failed;

  // `arrived(page, answer)` is called for each page, `failed(error)` when one could not be had.
  constructor(arrived, failed) {
    this.#arrived = arrived;
    this.#failed = failed;
  }

  // Starts a new list. What was there stays until its first page arrives.
  ask(query) {
    this.#query = query;
    this.#turn += 1;
    this.#fetching.clear();
    this.#stale = new Set(this.#pages.keys());
    return this.#fetch(0);
  }

  at(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  }

  *known() {
    for (const page of this.#pages.values()) yield* page;
  }

  // Fetches what is missing or out of date between two places.
  want(first, last) {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(first, last - 1) / PAGE); page += 1) {
      const isThere = this.#pages.has(page) && !this.#stale.has(page);
      if (!isThere && !this.#fetching.has(page) && page * PAGE < Math.max(this.total, 1)) this.#fetch(page);
    }
  }

  // The same list in its newest order: pages are fetched again when they are next shown, and shown as they are until then.
  renew(query) {
    this.#query = query;
    this.#turn += 1;
    this.#fetching.clear();
    this.#stale = new Set(this.#pages.keys());
  }

  // Forgets pages that are out of date and not in sight, so that no photo is shown in two places for long.
  #forgetStale(exceptPage) {
    for (const page of this.#stale) if (Math.abs(page - exceptPage) > 1) this.#pages.delete(page);
  }

  async #fetch(page) {
    const turn = this.#turn;
    this.#fetching.add(page);
    try {
      const answer = await api.photos({ ...this.#query, offset: page * PAGE, limit: PAGE });
      if (turn !== this.#turn) return;
      this.#take(page, answer);
    } catch (error) {
      if (turn === this.#turn) this.#failed(error);
    } finally {
      if (turn === this.#turn) this.#fetching.delete(page);
    }
  }

  #take(page, answer) {
    this.#forgetStale(page);
    this.#stale.delete(page);
    this.#pages.set(page, answer.photos);
    this.total = answer.total;
    this.#arrived(page, answer);
  }
}
