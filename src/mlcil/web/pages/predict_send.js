// Requests: a few at a time, again where the server is busy.

const AT_ONCE = 3;
const TRIES = 8;
const waiting = [];
let running = 0;

export async function fetchJson(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await reasonOf(answer));
  return answer.json();
}

/** The entry of one picture in the answer of /v1/predict; rejects with a line for people. */
export function tagsOf(file, query) {
  return new Promise((resolve, reject) => {
    waiting.push({ file, query, resolve, reject });
    next();
  });
}

function next() {
  while (running < AT_ONCE && waiting.length) {
    const job = waiting.shift();
    running += 1;
    send(job.file, job.query).then(job.resolve, job.reject).finally(() => {
      running -= 1;
      next();
    });
  }
}

async function send(file, query) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await posted(file, query);
    if (answer.ok) {
      const [image] = (await answer.json()).images;
      if (image.error) throw new Error(image.error);
      return image;
    }
    if (answer.status !== 503 || attempt === TRIES) throw new Error(await reasonOf(answer));
    const seconds = Number(answer.headers.get("Retry-After")) || 1;
    await new Promise((done) => setTimeout(done, 1000 * seconds * Math.min(attempt, 4)));
  }
}

async function posted(file, query) {
  const form = new FormData(); // in a form, an image that cannot be read is no failure of the request
  form.append("files", file);
  try {
    return await fetch(`/v1/predict?${new URLSearchParams(query)}`, { method: "POST", body: form });
  } catch {
    throw new Error("the server does not answer, or the file cannot be read");
  }
}

async function reasonOf(answer) {
  try {
    return String((await answer.json()).detail);
  } catch {
    return `the server answers ${answer.status}`;
  }
}
