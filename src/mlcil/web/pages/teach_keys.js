// Clicks and keys on photos, the same in the rows and in the grid.

import { usesKeyboard } from './teach_hold.js';
import { element } from './teach_words.js';

const MARKS = { ' ': 'yes', x: 'no', u: 'unknown' };

const isTyping = target => target.closest('input:not([type=range]), textarea, select') !== null;
const ownerOf = cell => cell.closest('[role=grid]').owner;

export class Keys {
  #actions;
  #commands;
  #pointed = null; // the tile under the pointer

  // `commands` has open(tile, owner), like(tile), label(key), search(), help() and close().
  constructor(actions, commands) {
    this.#actions = actions;
    this.#commands = commands;
    const middle = element('middle');
    middle.addEventListener('click', event => this.#click(event));
    middle.addEventListener('pointerover', event => { this.#pointed = event.target.closest('.tile'); });
    middle.addEventListener('pointerleave', () => { this.#pointed = null; });
    document.addEventListener('keydown', event => this.#key(event));
  }

  #click(event) {
    const cell = event.target.closest('.tile');
    if (!cell?.tile) return;
    const act = event.target.closest('[data-act]')?.dataset.act;
    cell.focus({ preventScroll: true });
    if (act === 'open') this.#commands.open(cell.tile, ownerOf(cell));
    else ownerOf(cell).act(cell, act ?? 'yes');
  }

  // The photo that a key is for: the one with the keyboard's focus, else the one under the pointer, else the last clicked.
  #target() {
    const focused = document.activeElement?.closest?.('.tile') ?? null;
    if (focused && usesKeyboard()) return focused;
    return (this.#pointed?.isConnected ? this.#pointed : null) ?? focused;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector('dialog[open]')) return;
    if (isTyping(event.target)) return this.#leaveField(event);
    if (this.#general(event) || this.#onTile(event)) event.preventDefault();
  }

  #leaveField(event) {
    if (event.key === 'Escape') event.target.blur();
  }

  #general(event) {
    const { key } = event;
    if (/^[1-9]$/.test(key)) this.#commands.label(key);
    else if (key.toLowerCase() === 'z' && !event.repeat) event.shiftKey ? this.#actions.redo() : this.#actions.undo();
    else if (key === '/') this.#commands.search();
    else if (key === '?') this.#commands.help();
    else if (key === 'Escape') this.#commands.close();
    else return false;
    return true;
  }

  #onTile(event) {
    const { key } = event;
    const focused = event.target.closest('.tile');
    if (focused && ownerOf(focused).move(focused, key)) return true;
    // Buttons and links have their own use for the space bar and Enter.
    const isControl = !focused && event.target.closest('button, a, summary, input, [role=option]') !== null;
    if (isControl && (key === ' ' || key === 'Enter')) return false;
    const cell = this.#target();
    if (!cell?.tile) return false;
    if (key === 'Enter' && !event.repeat) ownerOf(cell).confirm();
    else if (key in MARKS && !event.repeat) ownerOf(cell).act(cell, MARKS[key]);
    else if (key === 'g') this.#commands.like(cell.tile);
    else if (key === 'o') this.#commands.open(cell.tile, ownerOf(cell));
    else return key === ' ' || key === 'Enter';
    return true;
  }
}
