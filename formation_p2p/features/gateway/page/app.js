import { $, clock } from "./dom.js";
import { sendToNearest } from "./nearest.js";
import * as views from "./views.js";

// The gateway says something each 10 s, if only that there is nothing new.
const SILENT_MS = 25_000;
const AGAIN_MS = 3_000;
const STILL = new URLSearchParams(location.search).has("still");
const RING_MS = 30_000;

class Refused extends Error {}

async function get(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  if (answer.status === 401 || answer.status === 403) throw new Refused((await answer.json()).message);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

// -- tables: one page each, read anew with the overview -------------------------------------------

const offsets = { services: 0, workers: 0, jobs: 0, requests: 0 };
const paths = { services: "/api/services/status", workers: "/api/admin/workers", jobs: "/api/jobs", requests: "/api/requests" };
const shown = new Set(["services"]);

async function table(name) {
  const data = await get(`${paths[name]}?offset=${offsets[name]}&limit=${views.SIZE[name]}`);
  if (data.total && offsets[name] >= data.total) {
    offsets[name] = 0; // what was on that page has gone
    return table(name);
  }
  views[name](
    data,
    (offset) => {
      offsets[name] = offset;
      table(name).catch(lost);
    },
    (id) => {
      opened = id;
      job().then(() => $("job").scrollIntoView({ block: "nearest" }), lost);
    }
  );
}

// The job whose tasks are shown.
let opened = "";
async function job() {
  if (!opened) return;
  const asked = opened;
  const answer = await fetch(`/api/jobs/${encodeURIComponent(asked)}`, { cache: "no-store" });
  if (answer.status === 404 || asked !== opened) return; // the gateway has forgotten it, or another is
  if (!answer.ok) throw new Error(`job: ${answer.status}`);
  views.job(await answer.json(), () => {
    opened = "";
    $("job").hidden = true;
  });
}

// The ring has a dot for each worker: it is read when their number changes, and now and then.
let ringed = { total: -1, at: 0 };
async function network() {
  if (ringed.total === total && Date.now() - ringed.at < RING_MS) return;
  ringed = { total, at: Date.now() };
  views.ring(await get("/api/ring"));
}

async function section(name) {
  if (name === "network") return network();
  if (name === "jobs") {
    views.gangs(await get("/api/gangs"));
    await job();
  }
  return table(name);
}

// Only what is near the eye is read, and the services, to which the gaps lead.
const looking = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting && target.id !== "services") shown.delete(target.id);
      else if (!isIntersecting) continue;
      else if (!shown.has(target.id)) {
        shown.add(target.id);
        if (source) section(target.id).catch(lost);
      }
    }
  },
  { rootMargin: "200px" }
);

// -- live -----------------------------------------------------------------------------------------

let source = null;
let last = 0;
let total = 0; // of the workers
let silence = 0;
let refreshing = false;

function heard() {
  clearTimeout(silence);
  silence = setTimeout(() => lost(new Error("silent")), SILENT_MS);
  document.body.classList.remove("is-lost");
  $("lost").hidden = true;
}

async function seen(event) {
  heard();
  const overview = JSON.parse(event.data);
  last = overview.unix_s;
  total = overview.workers.total;
  const name = overview.gateway.name;
  $("live").textContent = `Live at ${name}, ${clock(last)}`;
  document.title = overview.needs[0]?.message ?? `formation at ${name}`;
  views.missing(overview);
  if (refreshing) return;
  refreshing = true;
  try {
    await Promise.all([...shown].map(section));
  } catch (error) {
    lost(error);
  } finally {
    refreshing = false;
  }
}

function lost(error) {
  if (error instanceof Refused) return ask(error.message);
  source?.close();
  source = null;
  clearTimeout(silence);
  document.body.classList.add("is-lost");
  $("live").textContent = "Not connected";
  const text = last ? `Connection lost. What you see is of ${clock(last)}; trying again.` : "The gateway does not answer; trying again.";
  if ($("lost").textContent !== text || $("lost").hidden) {
    $("lost").textContent = text;
    $("lost").hidden = false;
  }
  clearTimeout(silence);
  silence = setTimeout(begin, AGAIN_MS);
}

// /?still is read once, for pictures and paper.
async function stand(overview) {
  total = overview.workers.total;
  $("live").textContent = `${overview.gateway.name}, ${clock(overview.unix_s)}`;
  await Promise.all(["services", "workers", "jobs", "requests", "network"].map(section));
}

async function begin() {
  clearTimeout(silence);
  let overview;
  try {
    overview = await get("/api/overview"); // says whether we may look
    views.missing(overview);
    if (STILL) return await stand(overview);
  } catch (error) {
    return lost(error);
  }
  $("token").hidden = true;
  $("main").hidden = false;
  source = new EventSource("/api/events");
  source.addEventListener("overview", seen);
  source.addEventListener("ping", heard);
  source.onerror = () => lost(new Error("closed"));
  heard();
  for (const each of document.querySelectorAll("main > section:not(#missing)")) looking.observe(each);
}

// -- the token ------------------------------------------------------------------------------------

async function keep(token) {
  await get("/api/session", { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

function ask(why) {
  $("token").hidden = false;
  $("main").hidden = true;
  $("live").textContent = "Not connected";
  $("token-problem").textContent = why;
  $("token-text").focus();
}

$("token").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await keep($("token-text").value.trim());
    $("token-text").value = "";
    await begin();
  } catch (error) {
    ask(error.message);
  }
});

// http://host:8080/#token=… : the fragment is not sent, and does not stay in the history.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", location.pathname + location.search);
  // Nobody's link has a person go on as somebody else unasked, who would see what is submitted then.
  const isKnown = await get("/api/overview").then(() => true, () => false);
  if (!isKnown || confirm("Use the token of this address in place of yours?")) await keep(given).catch(() => {});
}
// Whoever has a token for this gateway in the address was told to come here: they are asked, not sent.
if (!STILL) sendToNearest({ asks: Boolean(given) }).catch(() => {}); // without it, this gateway serves as well
await begin();
