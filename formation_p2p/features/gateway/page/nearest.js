import { $, el, named } from "./dom.js";

// People who say no region go to the nearest of the gateways that the owner of this one has named, by their own round
// trips. Nothing goes along but the region that they come from: no token, and nothing else of the address.

// Another one has to be nearer in both ways. Less than 30 ms a person does not feel, and the radio of a phone varies by.
const GAIN_MS = 30;
// Of two that are far, 250 and 300 ms, either may be the nearer one a minute later.
const FACTOR = 1.5;
// Of each request. What takes longer is not near, or not there.
const DEADLINE_MS = 2_000;
// After the one that opens the connection. The least counts: more is waiting, not distance.
const TIMES = 3;
// The owner may name 64; those that were the slowest to open a connection are asked no more.
const MOST = 8;
// Kept by the browser for this gateway until its tab is closed.
const STAYS = "formation.stays";

const query = new URLSearchParams(location.search);

// `gateways` have the least round trip of each in `ms`, and `is_this` where that is the one of this page. Where to go,
// or nothing.
export function nearer(gateways) {
  const own = gateways.find((each) => each.is_this);
  const [best] = gateways.filter((each) => !each.is_this).sort((one, other) => one.ms - other.ms);
  const isNearer = own && best && own.ms - best.ms >= GAIN_MS && own.ms >= best.ms * FACTOR;
  return isNearer ? { ...best, own_ms: own.ms } : null;
}

// `asks` where a person decides, and is not sent.
export async function sendToNearest({ asks }) {
  let isUsed = asks;
  const used = () => (isUsed = true);
  // Who has begun to read or to write here does not lose that.
  for (const each of ["keydown", "pointerdown", "wheel"]) addEventListener(each, used, { once: true, passive: true });
  if (query.has("stay")) stay();
  if (stays() && !query.has("from")) return;
  const answer = await fetch("/api/gateways", { cache: "no-store" });
  const { gateways, your_region } = await answer.json();
  if (query.has("from")) return arrive(gateways);
  const said = query.get("region") || your_region;
  if (said && gateways.some((each) => each.region === said)) return;
  const own = gateways.find((each) => each.is_this);
  // An owner may give all of the gateways the same list.
  const others = gateways.filter((each) => each.url !== location.origin && each.region !== own.region);
  if (!others.length) return;
  const there = nearer(await measured([own, ...others]));
  if (!there) return stay();
  const url = `${there.url}/?from=${encodeURIComponent(own.region)}`;
  if (isUsed) offer(there, url);
  else location.replace(url);
}

// -- how far --------------------------------------------------------------------------------------

async function roundTrip(gateway) {
  const began = performance.now();
  const answer = await fetch(gateway.is_this ? "/health" : `${gateway.url}/health`, {
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(DEADLINE_MS),
  });
  const ms = performance.now() - began;
  // Read to its end, so that the next request has this connection. A proxy whose gateway is down answers as fast.
  if (!answer.ok || (await answer.json()).coordinator !== "formation") throw new Error("no gateway");
  return ms;
}

async function least(gateway) {
  const times = [];
  while (times.length < TIMES) times.push(await roundTrip(gateway));
  return { ...gateway, ms: Math.round(Math.min(...times)) };
}

// Those that answered.
async function answered(asked) {
  const all = await Promise.allSettled(asked);
  return all.filter((each) => each.status === "fulfilled").map((each) => each.value);
}

async function measured(gateways) {
  const opened = await answered(gateways.map(async (each) => ({ ...each, ms: await roundTrip(each) })));
  opened.sort((one, other) => one.ms - other.ms);
  return answered(opened.filter((each, at) => each.is_this || at < MOST).map(least));
}

// -- whether to stay ------------------------------------------------------------------------------

// A browser that keeps nothing for a page measures each time that it is opened.
function stay() {
  try {
    sessionStorage.setItem(STAYS, "yes");
  } catch {
    return false;
  }
  return true;
}

function stays() {
  try {
    return query.has("stay") || sessionStorage.getItem(STAYS) !== null;
  } catch {
    return query.has("stay");
  }
}

// -- what is said ---------------------------------------------------------------------------------

// Sent by another gateway, and never sent on. Its mark leaves the address, which people keep and pass on.
function arrive(gateways) {
  const from = gateways.find((each) => !each.is_this && each.region === query.get("from"));
  if (stay()) history.replaceState(null, "", location.pathname + location.hash);
  $("nearest").replaceChildren(
    el("span", {}, "You were sent to this gateway, which is nearer to you."),
    from ? el("a", { href: `${from.url}/?stay` }, "Go back to ", named(from.region)) : ""
  );
}

function offer(there, url) {
  const line = $("nearest");
  const here = () => {
    stay();
    line.replaceChildren();
    $($("main").hidden ? "token-text" : "main").focus({ preventScroll: true }); // the button, which had it, is gone
  };
  line.replaceChildren(
    el("span", {}, "The gateway ", named(there.region), ` is nearer to you: ${there.ms} ms there, ${there.own_ms} ms here.`),
    el("a", { href: url }, "Go there"),
    el("button", { type: "button", onclick: here }, "Stay here")
  );
}
