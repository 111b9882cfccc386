import { $, changed, el, named, pager, rows, svg, when } from "./dom.js";

const GB = { critical: "no worker", warning: "one worker", unknown: "not known", ok: "covered" };
export const SIZE = { services: 50, workers: 25, jobs: 10, requests: 10 };

const state = (status) => el("span", { class: `state ${status}` }, status);

function listed(names) {
  const [last, ...others] = [...names].reverse();
  return others.length ? `${others.reverse().join(", ")} and ${last}` : last;
}

// -- what is missing ------------------------------------------------------------------------------

export function missing(overview) {
  const { needs, gaps, summary, states, problem } = overview;
  const title = $("missing-title");
  const first = needs[0]?.message;
  let text = first ?? "";
  if (!first) {
    if (!summary.total_services) text = "No services are in the catalog yet";
    else if (states.unknown) text = "Some services could not be read";
    else if (summary.needs_attention) text = attention(states);
    else if (summary.total_services === 1) text = "The only service is covered";
    else text = `All ${summary.total_services} services are covered`;
  }
  if (title.textContent !== text) title.textContent = text;
  if (changed($("needs"), [needs, problem])) {
    $("needs").replaceChildren(
      ...(needs.length ? [contribute(needs)] : []),
      ...(problem ? [el("p", { class: "count" }, `The network could not be read anew: ${problem}`)] : [])
    );
  }
  if (changed($("gaps"), gaps)) gapLinks(gaps);
}

// Of services that nobody has to do anything about: they start, or have nobody to take their place.
function attention({ critical = 0, warning = 0 }) {
  const starting = critical === 1 ? "1 service is starting" : `${critical} services are starting`;
  const alone = `${critical ? (warning === 1 ? "1 has" : `${warning} have`) : warning === 1 ? "1 service has" : `${warning} services have`} only one worker`;
  return [critical ? starting : "", warning ? alone : ""].filter(Boolean).join(", and ");
}

const lacking = (need) => `${listed(need.services)} ${need.services.length > 1 ? "have" : "has"} no worker.`;

function contribute(needs) {
  const command = "formation contribute INVITE";
  const copied = el("span", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      copied.textContent = "Copied";
    } catch {
      copied.textContent = "Select it, and copy it";
    }
  };
  return el(
    "div",
    { class: "need" },
    needs.length === 1
      ? el("p", {}, lacking(needs[0]))
      : el("ul", {}, ...needs.map((need) => el("li", {}, el("strong", {}, need.message), ": ", lacking(need)))),
    el("p", {}, "On a machine that can help:"),
    el("div", { class: "command" }, el("code", {}, command), el("button", { type: "button", onclick: copy }, "Copy"), copied),
    el("small", {}, "INVITE is what ", el("code", {}, "formation network invite"), " prints on a machine of this network. The work runs in a sandbox, and ends with Ctrl-C.")
  );
}

function gapLinks(gaps) {
  const list = $("gaps");
  const known = new Map([...list.children].map((each) => [each.dataset.service, each]));
  list.replaceChildren(
    ...gaps.map((gap) => {
      const item = known.get(gap.service) ?? el("li", { "data-service": gap.service }, el("a", { href: `#service-${gap.service}` }));
      const link = item.firstElementChild;
      link.onclick = (event) => open(event, gap.service);
      link.replaceChildren(state(gap.status), " ", el("strong", {}, named(gap.service)), el("span", { class: "why" }, gap.why));
      return item;
    })
  );
}

function open(event, service) {
  const details = document.getElementById(`service-${service}`);
  if (!details) return;
  event.preventDefault(); // the browser would take the focus to nowhere
  details.open = true;
  details.scrollIntoView();
  details.querySelector("summary").focus({ preventScroll: true });
}

// -- services -------------------------------------------------------------------------------------

export function services(data, go) {
  const list = $("services-list");
  const known = new Map([...list.children].map((each) => [each.id, each]));
  const made = data.services.map((service) => {
    const id = `service-${service.service}`;
    const details = known.get(id) ?? el("details", { id }, el("summary"), el("div", { class: "inside" }));
    if (changed(details, service)) drawService(details, service);
    return details;
  });
  const same = made.length === list.children.length && made.every((each, at) => each === list.children[at]);
  if (!same) {
    const focused = document.activeElement;
    list.replaceChildren(...made);
    if (list.contains(focused)) focused.focus({ preventScroll: true });
  }
  const count = data.total === 1 ? "1 service" : `${data.total} services`;
  $("services-count").textContent = data.total ? `${count}, the worst first. Open one for its reason and its replicas.` : "None yet: formation service apply FILE publishes one.";
  pager($("services-pager"), { ...data, shown: made.length, size: SIZE.services }, "services", go);
}

function drawService(details, service) {
  const [summary, inside] = details.children;
  summary.replaceChildren(
    state(service.status),
    el("span", { class: "name" }, named(service.service)),
    el("span", { class: "kind" }, service.required_type),
    el("span", { class: "ready" }, `${service.current_workers} of ${service.target}`, ...service.notes.map((each) => el("span", { class: "note" }, each))),
    strip(service.history)
  );
  const replicas = service.replicas.map((each) =>
    el(
      "li",
      {},
      el("strong", {}, named(each.worker)),
      el("span", { class: `state ${each.state === "ready" ? "ok" : "warning"}` }, each.state),
      el("span", {}, [each.why, each.version ? `version ${each.version}` : "", each.capacity ? `${each.outstanding} of ${each.capacity} requests` : ""].filter(Boolean).join("; "))
    )
  );
  const past = [...service.history].reverse().map((each) => el("li", {}, when(each.unix_s), state(each.status), el("span", {}, each.why)));
  inside.replaceChildren(
    el("p", { class: "why" }, service.why),
    el("p", { class: "count" }, `Version ${service.version}, port ${service.port}, priority ${service.priority}. `, el("code", {}, `/service/${service.service}/`)),
    el("h3", {}, "Replicas"),
    replicas.length ? el("ol", {}, ...replicas) : el("p", { class: "count" }, "None."),
    el("h3", {}, "History"),
    el("ol", {}, ...past)
  );
}

function strip(history) {
  const now = Date.now() / 1000;
  const begins = history[0]?.unix_s ?? now;
  const whole = Math.max(0.001, now - begins);
  const bars = history.map((each, at) => {
    const ends = history[at + 1]?.unix_s ?? now;
    const x = ((each.unix_s - begins) / whole) * 100;
    return svg("rect", { class: each.status, x: x.toFixed(2), width: Math.max(0.8, ((ends - each.unix_s) / whole) * 100).toFixed(2), height: 10, y: 0 });
  });
  const last = history.at(-1);
  const label = history.length > 1 ? `${history.length - 1} changes seen; ${GB[last.status]} now` : "no change seen";
  return svg("svg", { class: "strip", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars);
}

// -- workers, jobs, requests ----------------------------------------------------------------------

export function workers(data, go) {
  rows(
    $("workers-table"),
    data.workers,
    (each) => [
      [named(each.name), " ", el("span", { class: "id" }, each.tunnel_url ? "HTTP" : `…${each.worker_id.slice(-8)}`)],
      el("span", { class: "kind" }, each.worker_type),
      [each.gives ?? each.tunnel_url ?? "", each.rtt_ms === null || each.rtt_ms === undefined ? "" : `${each.rtt_ms || "under 0.1"} ms from here`].filter(Boolean).join("; "),
      each.gave || "nothing yet",
      each.assigned_services.join(", ") || "none",
    ]
  );
  $("workers-count").textContent = data.total ? counted(data.total, "worker") : "None yet: formation worker lends a machine of this network.";
  pager($("workers-pager"), { ...data, shown: data.workers.length, size: SIZE.workers }, "workers", go);
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const OF_JOB = { running: "running", succeeded: "ok", failed: "critical", cancelled: "warning" };

export function jobs(data, go, open) {
  rows(
    $("jobs-table"),
    data.jobs,
    (each) => [
      [el("button", { type: "button", class: "link", onclick: () => open(each.job_id) }, named(each.name)), " ", el("span", { class: "id" }, `…${each.job_id.slice(-8)}`)],
      el("span", { class: `state ${OF_JOB[each.state] ?? "unknown"}` }, each.state),
      `${each.done} of ${each.tasks}`,
      when(each.submitted_unix_s),
    ]
  );
  const running = data.jobs.filter((each) => each.state === "running").length;
  $("jobs-count").textContent = data.total ? `${counted(data.total, "job")} of this gateway${running ? `, ${running} running` : ""}. Open one for its tasks and what they print.` : "None yet: POST /api/jobs submits one.";
  pager($("jobs-pager"), { ...data, shown: data.jobs.length, size: SIZE.jobs }, "jobs", go);
}

// Of a job with more, these are shown, those that failed first.
const MAX_TASKS = 100;
const OF_TASK = { succeeded: "ok", failed: "critical", unplaceable: "critical", cancelled: "warning" };

export function job(data, close) {
  const place = $("job");
  place.hidden = false;
  if (!changed(place, data)) return;
  const at = place.querySelector("h3 button") === document.activeElement;
  const read = new Map([...place.querySelectorAll("pre")].map((each) => [each.dataset.task, each.scrollTop]));
  const rank = (each) => (OF_TASK[each.status] === "critical" ? 0 : 1);
  const tasks = [...data.every_task].sort((one, other) => rank(one) - rank(other)).slice(0, MAX_TASKS);
  const left = data.every_task.length - tasks.length;
  place.replaceChildren(
    el(
      "h3",
      {},
      named(data.name),
      el("span", { class: "id" }, `…${data.job_id.slice(-8)}`),
      el("span", { class: `state ${OF_JOB[data.state] ?? "unknown"}` }, data.state),
      el("button", { type: "button", onclick: close }, "Close")
    ),
    el("p", { class: "count" }, `${data.done} of ${counted(data.tasks, "task")} done; submitted `, when(data.submitted_unix_s), ...(data.ended_unix_s ? [", ended ", when(data.ended_unix_s)] : []), data.error ? `. ${data.error}` : "."),
    el("ol", {}, ...tasks.map(task), left ? el("li", {}, `and ${counted(left, "more task")}`) : null)
  );
  for (const each of place.querySelectorAll("pre")) each.scrollTop = read.get(each.dataset.task) ?? each.scrollHeight;
  if (at) place.querySelector("h3 button").focus();
}

function task(each) {
  const status = each.status ?? (each.printed ? "running" : "not ended");
  const printed = each.printed || [each.stdout, each.stderr].filter(Boolean).join("\n");
  const facts = [
    each.exit_code ? `exit code ${each.exit_code}` : "",
    each.ran_ms === undefined || each.ran_ms === null ? "" : `${(each.ran_ms / 1000).toFixed(1)} s`,
    each.worker ? `on …${each.worker.slice(-8)}` : "",
  ].filter(Boolean);
  return el(
    "li",
    {},
    el("p", {}, el("strong", {}, named(each.label)), el("span", { class: `state ${OF_TASK[status] ?? "running"}` }, status), el("span", { class: "facts" }, facts.join(", "))),
    each.error ? el("p", {}, each.error) : null,
    printed ? el("pre", { tabindex: 0, "data-task": each.task_id, "aria-label": `What ${each.label} printed` }, printed) : null
  );
}

export function gangs(data) {
  $("gangs").hidden = !data.total;
  rows($("gangs-table"), data.gangs, (each) => [el("span", { class: "id" }, `…${each.gang_id.slice(-8)}`), each.state, `${each.held} of ${each.members}`, when(each.since_unix_s)]);
}

export function requests(data, go) {
  rows(
    $("requests-table"),
    data.requests,
    (each) => [
      when(each.unix_s),
      [el("code", {}, each.method), " ", named(each.path), ...(each.replica ? [" ", el("span", { class: "id" }, `…${each.replica.slice(-8)}`)] : [])],
      el("span", { class: `state ${each.status < 400 ? "ok" : each.status < 500 ? "warning" : "critical"}` }, String(each.status)),
      `${each.ms} ms`,
    ]
  );
  $("requests-count").textContent = `${counted(data.served, "request")} served since this gateway began${data.total ? "" : "; none of them to a service or a job"}`;
  pager($("requests-pager"), { ...data, shown: data.requests.length, size: SIZE.requests }, "requests", go);
}

// -- the network ----------------------------------------------------------------------------------

export function ring(data) {
  const kinds = ["gpu", "cpu", "storage", "edge"];
  const counts = Object.fromEntries(kinds.map((kind) => [kind, data.dots.filter((dot) => dot[1] === kind).length]));
  const said = kinds.filter((kind) => counts[kind]).map((kind) => `${counts[kind]} ${kind}`);
  $("ring").hidden = !data.total;
  $("network-count").textContent = data.total ? "Each worker stands at its key: tasks go to the one nearest to theirs." : "No worker yet.";
  if (!changed($("ring"), data)) return;
  const size = data.dots.length > 300 ? 1.1 : data.dots.length > 60 ? 1.8 : 3;
  const lanes = data.dots.length > 300 ? 4 : 1;
  const dots = data.dots.map(([position, kind, name, id], at) => {
    const angle = (position - 0.25) * 2 * Math.PI;
    const radius = 84 - (at % lanes) * 3.2;
    return svg(
      "circle",
      { class: `dot k-${kind}`, r: size, cx: (100 + radius * Math.cos(angle)).toFixed(1), cy: (100 + radius * Math.sin(angle)).toFixed(1) },
      svg("title", {}, `${name} …${id}, ${kind}`)
    );
  });
  $("ring").replaceChildren(
    svg("svg", { viewBox: "0 0 200 200", role: "img", "aria-label": `The ring of keys with ${data.total} workers: ${said.join(", ")}` }, svg("circle", { class: "track", cx: 100, cy: 100, r: 90 }), ...dots),
    el("ul", { class: "legend" }, ...kinds.filter((kind) => counts[kind]).map((kind) => el("li", {}, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("circle", { class: `k-${kind}`, cx: 5, cy: 5, r: 5 })), `${counts[kind]} ${kind}`)))
  );
}
