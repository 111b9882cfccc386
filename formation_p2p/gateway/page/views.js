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
    else if (summary.needs_attention) text = `${summary.needs_attention} of ${summary.total_services} services have one worker, or wait for theirs`;
    else if (summary.total_services === 1) text = "The only service is covered";
    else text = `All ${summary.total_services} services are covered`;
  }
  if (title.textContent !== text) title.textContent = text;
  if (changed($("needs"), [needs, problem])) {
    $("needs").replaceChildren(
      ...needs.map((need, at) => contribute(need, at > 0)),
      ...(problem ? [el("p", { class: "count" }, `The network could not be read anew: ${problem}`)] : [])
    );
  }
  if (changed($("gaps"), gaps)) gapLinks(gaps);
}

function contribute(need, withMessage) {
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
    withMessage ? el("h2", {}, need.message) : null,
    el("p", {}, `${listed(need.services)} ${need.services.length > 1 ? "have" : "has"} no worker. On a machine that can help:`),
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
      link.replaceChildren(state(gap.status), " ", el("strong", {}, named(gap.service)), el("span", {}, gap.why));
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
      each.worker_type,
      [each.gives ?? each.tunnel_url ?? "", each.rtt_ms === null || each.rtt_ms === undefined ? "" : `${each.rtt_ms} ms from here`].filter(Boolean).join("; "),
      each.gave || "nothing through this gateway",
      each.assigned_services.join(", ") || "none",
    ],
    "No worker yet."
  );
  $("workers-count").textContent = data.total === 1 ? "1 worker" : `${data.total} workers`;
  pager($("workers-pager"), { ...data, shown: data.workers.length, size: SIZE.workers }, "workers", go);
}

const OF_JOB = { running: "unknown", succeeded: "ok", failed: "critical", cancelled: "warning" };

export function jobs(data, go) {
  rows(
    $("jobs-table"),
    data.jobs,
    (each) => [
      [named(each.name), " ", el("span", { class: "id" }, `…${each.job_id.slice(-8)}`)],
      el("span", { class: `state ${OF_JOB[each.state] ?? "unknown"}` }, each.state),
      `${each.done} of ${each.tasks}`,
      when(each.submitted_unix_s),
    ],
    "None yet."
  );
  const running = data.jobs.filter((each) => each.state === "running").length;
  $("jobs-count").textContent = data.total ? `${data.total} jobs of this gateway${running ? `, ${running} running` : ""}` : "POST /api/jobs submits one.";
  pager($("jobs-pager"), { ...data, shown: data.jobs.length, size: SIZE.jobs }, "jobs", go);
}

export function gangs(data) {
  $("gangs").hidden = !data.total;
  rows($("gangs-table"), data.gangs, (each) => [el("span", { class: "id" }, `…${each.gang_id.slice(-8)}`), each.state, `${each.held} of ${each.members}`, when(each.since_unix_s)], "None.");
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
    ],
    "None yet."
  );
  $("requests-count").textContent = `${data.served} served by this gateway since it began`;
  pager($("requests-pager"), { ...data, shown: data.requests.length, size: SIZE.requests }, "requests", go);
}

// -- the network ----------------------------------------------------------------------------------

export function ring(data) {
  const kinds = ["gpu", "cpu", "storage", "edge"];
  const counts = Object.fromEntries(kinds.map((kind) => [kind, data.dots.filter((dot) => dot[1] === kind).length]));
  const said = kinds.filter((kind) => counts[kind]).map((kind) => `${counts[kind]} ${kind}`);
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
