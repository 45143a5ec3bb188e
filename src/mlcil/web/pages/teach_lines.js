// The lines of the grid that are in the document, by their number.

import { dropTile, makeTile } from './teach_tile.js';

export class Lines {
  pitch = 150; // pixels from one line to the next
  #grid;
  #lines = new Map();

  constructor(grid) {
    this.#grid = grid;
  }

  get(line) {
    return this.#lines.get(line);
  }

  // Takes out the lines that are not wanted.
  keep(wanted) {
    for (const [line, row] of this.#lines) {
      if (wanted.has(line)) continue;
      for (const cell of row.children) dropTile(cell);
      row.remove();
      this.#lines.delete(line);
    }
  }

  make(line) {
    const row = document.createElement('div');
    row.className = 'line';
    row.setAttribute('role', 'row');
    row.setAttribute('aria-rowindex', String(line + 1));
    row.style.top = `${line * this.pitch}px`;
    // In reading order, also when scrolling up.
    const after = [...this.#lines.keys()].filter(other => other > line).sort((a, b) => a - b)[0];
    this.#grid.insertBefore(row, after === undefined ? null : this.#lines.get(after));
    this.#lines.set(line, row);
    return row;
  }

  // Gives a line as many tiles as it has photos.
  fit(row, length) {
    while (row.children.length > Math.max(0, length)) row.lastChild.remove();
    while (row.children.length < length) {
      const cell = makeTile();
      cell.setAttribute('aria-colindex', String(row.children.length + 1));
      row.append(cell);
    }
  }
}
