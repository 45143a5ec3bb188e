// Numbers and sentences as people read them, and the two ways to tell them: read aloud, or also shown for a while.

const numbers = new Intl.NumberFormat('en');
let hiding = 0;

export const element = id => document.getElementById(id);
export const number = value => numbers.format(value);
export const percent = value => `${Math.round(value * 100)}%`;
export const count = (value, word) => `${number(value)} ${word}${value === 1 ? '' : 's'}`;

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

// Only the last part of a path; the whole stands in the title.
export const shortName = name => name.split('/').pop();

// Says something to a screen reader.
export function announce(text) {
  element('announce').textContent = text;
}

// Says something to everybody, for as long as it takes to read.
export function tell(text, isTrouble = false) {
  const toast = element('toast');
  toast.textContent = text;
  toast.classList.toggle('trouble', isTrouble);
  toast.hidden = false;
  announce(text);
  clearTimeout(hiding);
  hiding = setTimeout(() => { toast.hidden = true; }, Math.max(4000, text.length * 70));
}
