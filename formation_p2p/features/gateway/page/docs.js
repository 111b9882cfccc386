import { $, el } from "./dom.js";

const answer = await fetch("/openapi.json");
if (!answer.ok) {
  $("about").textContent = `/openapi.json: ${answer.status}. Show a token on the page of the network first.`;
} else {
  draw(await answer.json());
}

function draw(api) {
  $("title").textContent = api.info.title;
  $("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "more";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(one(api, path, method.toUpperCase(), operation));
    }
  }
  for (const [tag, operations] of groups) {
    $("operations").append(el("section", { "aria-labelledby": `tag-${tag}` }, el("h2", { id: `tag-${tag}` }, tag), ...operations));
  }
}

function one(api, path, method, operation) {
  const takes = (operation.parameters ?? []).map((each) => el("li", {}, el("code", {}, each.name), ` ${each.in}${each.required ? ", needed" : ""}`));
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  const body = schema && sample(api, schema);
  const curl = [`curl${method === "GET" ? "" : ` -X ${method}`}`, ...(body ? [`-H 'content-type: application/json' -d '${JSON.stringify(body)}'`] : []), `${location.origin}${path}`].join(" ");
  return el(
    "div",
    { class: "op" },
    el("h3", {}, `${method} ${path}`),
    el("p", {}, operation.description ?? operation.summary ?? ""),
    takes.length ? el("ul", {}, ...takes) : null,
    el("pre", { tabindex: "0" }, curl)
  );
}

// What a request may look like, by the examples of its fields.
function sample(api, schema) {
  const found = schema.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema;
  if (found.examples?.length) return found.examples[0];
  if (!found.properties) return found.type === "integer" || found.type === "number" ? 0 : "";
  const fields = Object.entries(found.properties).filter(([name, field]) => field.examples || (found.required ?? []).includes(name));
  return Object.fromEntries(fields.map(([name, field]) => [name, sample(api, field)]));
}
