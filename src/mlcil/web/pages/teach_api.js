// Requests to the server. A request that is refused throws `Refused`, with one line that can be shown to the person.

const token = document.querySelector('meta[name="mlcil-token"]').content;
const listeners = [];
let isAnswering = true;

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// Calls `listener` with true or false when the server starts or stops answering.
export function onConnection(listener) {
  listeners.push(listener);
}

function report(answers) {
  if (answers === isAnswering) return;
  isAnswering = answers;
  for (const listener of listeners) listener(answers);
}

const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));

async function detailOf(answer) {
  const body = await answer.json().catch(() => null);
  return typeof body?.detail === 'string' ? body.detail : `The server answered with status ${answer.status}.`;
}

async function ask(path, options, seconds, tries = 3) {
  let answer;
  try {
    answer = await fetch(path, { ...options, signal: AbortSignal.timeout(seconds * 1000) });
  } catch {
    report(false);
    throw new Refused('The server does not answer.', 0);
  }
  report(true);
  // The server is busy and says when to come again.
  if (answer.status === 503 && tries > 0) {
    await pause(Math.min(Number(answer.headers.get('Retry-After')) || 1, 10));
    return ask(path, options, seconds, tries - 1);
  }
  if (!answer.ok) throw new Refused(await detailOf(answer), answer.status);
  return answer;
}

function addressOf(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const query = given.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join('&');
  return query ? `${path}?${query}` : path;
}

async function get(path, values = {}, seconds = 20) {
  return (await ask(addressOf(path, values), { cache: 'no-store' }, seconds)).json();
}

async function post(path, body, seconds = 60) {
  const headers = { 'Content-Type': 'application/json', 'X-Mlcil-Token': token };
  return (await ask(path, { method: 'POST', headers, body: JSON.stringify(body) }, seconds)).json();
}

export const state = () => get('/api/state', {}, 10);
export const label = name => get('/api/label', { name });
export const photos = query => get('/api/photos', query);
export const photo = (id, name) => get('/api/photo', { id, label: name });
export const mark = (name, marks) => post('/api/mark', { label: name, yes: [], no: [], unknown: [], ...marks });
export const undo = name => post('/api/undo', { label: name });
export const redo = name => post('/api/redo', { label: name });
export const threshold = (name, value) => post('/api/threshold', { label: name, value });
export const rename = (name, to) => post('/api/rename', { label: name, to });
export const merge = (name, into) => post('/api/merge', { label: name, into });
export const remove = name => post('/api/delete', { label: name });
export const save = name => post('/api/save', { name }, 600);
export const exportAs = (kind, version) => post('/api/export', { kind, version }, 600);

export const thumbOf = id => `/thumb/${encodeURIComponent(id)}`;
export const photoOf = id => `/photo/${encodeURIComponent(id)}`;

// Where the evidence for a label is, as an image to lay over the photo. Asked for here and not by an <img>, which would
// not tell why there is none.
export async function evidence(id, name) {
  const answer = await ask(addressOf(`/evidence/${encodeURIComponent(id)}`, { label: name }), {}, 60);
  return answer.blob();
}
