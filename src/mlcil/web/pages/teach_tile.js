// One photo in a row or in the grid.

import { thumbOf } from './teach_api.js';
import { percent, shortName } from './teach_words.js';

const template = document.getElementById('tile-template');
const words = { yes: 'marked yes', no: 'marked no', null: 'not marked' };
const stagedWords = { yes: 'selected', no: 'deselected', skip: 'left out' };

export function makeTile() {
  return template.content.firstElementChild.cloneNode(true);
}

// Fills a tile. `staged` is what confirming the row would say about the photo: yes, no, skip, or null.
export function fillTile(cell, tile, mark, staged = null) {
  cell.tile = tile;
  if (cell.dataset.id !== tile.id) showPhoto(cell, tile);
  cell.dataset.mark = mark ?? '';
  cell.dataset.staged = mark ? '' : staged ?? '';
  cell.toggleAttribute('data-tagged', tile.is_tagged);
  cell.setAttribute('aria-selected', String((mark ?? staged) === 'yes'));
  const score = cell.querySelector('.score');
  score.textContent = tile.score === null ? '' : percent(tile.score);
  score.hidden = tile.score === null;
  cell.setAttribute('aria-label', describe(tile, mark, staged));
}

function showPhoto(cell, tile) {
  cell.dataset.id = tile.id;
  cell.title = tile.name;
  const image = cell.querySelector('img');
  cell.classList.remove('broken');
  image.onerror = () => cell.classList.add('broken');
  image.src = thumbOf(tile.id);
}

function describe(tile, mark, staged) {
  const parts = [shortName(tile.name)];
  if (tile.score !== null) parts.push(`${percent(tile.score)}${tile.is_tagged ? ', tagged' : ''}`);
  parts.push(mark || !staged ? words[mark] : stagedWords[staged]);
  return parts.join(', ');
}

// A place in the grid whose photo is not known yet.
export function emptyTile(cell) {
  cell.tile = null;
  delete cell.dataset.id;
  cell.dataset.mark = '';
  cell.querySelector('img').removeAttribute('src');
  cell.querySelector('.score').hidden = true;
  cell.setAttribute('aria-label', 'Loading');
}

// Ends a download that nobody will see.
export function dropTile(cell) {
  const image = cell.querySelector('img');
  if (!image.complete) image.removeAttribute('src');
}
