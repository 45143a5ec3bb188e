// Describes the interface from /openapi.json, without anything from elsewhere.

function made(name, text, kind) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function typeOf(schema = {}) {
  if (schema.anyOf) return schema.anyOf.map(typeOf).filter((one) => one !== "null").join(" or ");
  if (schema.$ref) return schema.$ref.split("/").pop();
  return schema.type === "array" ? `${typeOf(schema.items)}, may be repeated` : schema.type ?? "anything";
}

function rowsOf(operation, schemas) {
  const rows = (operation.parameters ?? []).map((one) => [one.name, typeOf(one.schema), one.description ?? ""]);
  for (const [type, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    const fields = Object.keys(schemas[schema?.$ref?.split("/").pop()]?.properties ?? {});
    rows.push(["body", type, fields.length ? `with ${fields.join(", ")}` : ""]);
  }
  return rows;
}

function described(method, path, operation, schemas) {
  const card = made("article", "", "operation card");
  const head = made("h3");
  head.append(made("code", method.toUpperCase(), "method"), made("code", path), made("span", operation.summary, "soft"));
  card.append(head);
  if (operation.description) card.append(made("p", operation.description, "small"));
  const rows = rowsOf(operation, schemas);
  if (rows.length) {
    const list = made("dl", "", "parameters");
    for (const [name, type, words] of rows) list.append(made("dt", name), made("dd", words ? `${type}: ${words}` : type));
    card.append(list);
  }
  return card;
}

async function start() {
  document.getElementById("example").textContent = `curl --data-binary @photo.jpg '${location.origin}/v1/predict?top=5'\ncurl -F files=@a.jpg -F files=@b.jpg ${location.origin}/v1/predict`;
  const target = document.getElementById("operations");
  let api;
  try {
    api = await (await fetch("/openapi.json")).json();
  } catch {
    target.append(made("p", "The description cannot be loaded: the server does not answer."));
    return;
  }
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const name = operation.tags?.[0] ?? "other";
      groups.set(name, [...(groups.get(name) ?? []), described(method, path, operation, api.components?.schemas ?? {})]);
    }
  }
  for (const [name, cards] of groups) target.append(made("h2", name[0].toUpperCase() + name.slice(1)), ...cards);
}

start();
