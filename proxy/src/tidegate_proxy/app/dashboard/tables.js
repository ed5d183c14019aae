// What a snapshot says, as rows. Names come from clients: they are only ever set as text.
"use strict"
const by = (id) => document.getElementById(id)
const MODELS = 10
const colors = new Map()

function element(name, kind, text) {
  const made = document.createElement(name)
  if (kind) made.className = kind
  if (text !== undefined) made.textContent = text
  return made
}
// A name that keeps its end where it is shortened: similar names differ there.
const NAME_END = 12
function named(text) {
  const made = element("span", "name"), end = text.length > NAME_END ? NAME_END : 0
  made.append(element("span", "", text.slice(0, text.length - end)))
  if (end) made.append(element("span", "", text.slice(-end)))
  made.title = text
  return made
}
// One of several buttons of which one is pressed.
function chooser(group, name, isPressed, act) {
  const button = element("button", "", name)
  button.type = "button"
  button.setAttribute("aria-pressed", String(isPressed))
  button.onclick = () => {
    for (const each of by(group).children) each.setAttribute("aria-pressed", String(each === button))
    act()
  }
  return button
}
const colorOf = (model) => {
  if (!colors.has(model)) colors.set(model, colors.size < MODELS ? `--model-${colors.size}` : "--other")
  return colors.get(model)
}
// Equal in every browser: by name, not by which answer came first.
const giveColors = (models) => [...models].sort().forEach(colorOf)
const digits = (value, places) => value.toLocaleString("en", { maximumFractionDigits: places, minimumFractionDigits: places })
const shown = (value, places = 1) => (value === null || value === undefined ? "" : digits(value, places))
const percent = (share) => (share === null ? "" : `${digits(100 * share, 1)} %`)
const grade = (share) => (share === null ? "" : share >= 0.99 ? "on-time" : share >= 0.9 ? "late" : "failed")
const outcomeClass = (outcome) => outcome.replace(" ", "-")

function cell(what, text, kind = "") {
  const made = element("td", kind, text)
  made.dataset.what = what
  return made
}

function sizesOf(sizes) {
  const bars = element("div", "sizes"), counts = Object.entries(sizes), most = Math.max(1, ...counts.map(([, n]) => n))
  bars.setAttribute("role", "img")
  bars.setAttribute("aria-label", counts.map(([rows, count]) => `${count} of ${rows}`).join(", ") || "no batches")
  for (const [rows, count] of counts.slice(0, 40)) {
    const bar = element("i")
    bar.style.height = `${Math.max(2, (18 * count) / most)}px`
    bar.title = `${count} batches of ${rows} rows`
    bars.append(bar)
  }
  return bars
}

function showModels(snapshot) {
  giveColors(snapshot.models.map((model) => model.name))
  by("models").tBodies[0].replaceChildren(...snapshot.models.map((model) => {
    const row = element("tr"), name = cell("model", undefined, "word"), swatch = element("span", "swatch")
    swatch.style.background = `var(${colorOf(model.name)})`
    const line = element("div", "named"), isOver = isOverSlo(model)
    line.append(swatch, named(model.name))
    name.append(line)
    const p99 = cell("p99 ms", `${isOver ? "▲ " : ""}${shown(model.p99_ms)}`, isOver ? "share failed" : "")
    if (isOver) p99.title = `above the SLO of ${shown(model.slo_ms, 0)} ms`
    const sized = cell("batch sizes", undefined, "word sized")
    sized.append(sizesOf(model.sizes))
    row.append(
      name, cell("requests/s", shown(model.rate_rps)), cell("on time", percent(model.on_time), `share ${grade(model.on_time)}`),
      cell("p50 ms", shown(model.p50_ms)), p99, cell("SLO ms", shown(model.slo_ms, 0)),
      cell("waiting", shown(model.waiting, 0)), cell("late", shown(model.late, 0)),
      cell("dropped", shown(model.dropped, 0)), cell("failed", shown(model.failed, 0)),
      cell("rows/batch", shown(model.mean_rows)), sized,
    )
    return row
  }))
  const more = snapshot.more_models ? `; ${snapshot.more_models} more are not shown` : ""
  const streams = snapshot.models.filter((model) => model.gaps_on_time !== null)
    .map((model) => `${model.name} ${percent(model.gaps_on_time)}`).join(", ")
  by("models-note").textContent = `Of the last ${digits(snapshot.window_s, 0)} s${more}. ▲ marks a p99 above the SLO.`
    + (streams && ` Streams within slo_gap_ms since the start: ${streams}.`)
  showTiles(snapshot)
  let rate = 0, good = 0, counted = 0
  for (const model of snapshot.models) {
    rate += model.rate_rps
    if (model.on_time !== null) { good += model.on_time * model.rate_rps; counted += model.rate_rps }
  }
  by("verdict").textContent = counted
    ? `${digits(100 * good / counted, 1)} % of ${digits(rate, rate < 100 ? 1 : 0)} requests/s are on time`
    : "No requests at present"
}

function showTenants(tenants) {
  by("accounts").hidden = !tenants.length
  by("tenants").tBodies[0].replaceChildren(...tenants.map((tenant) => {
    const row = element("tr"), name = cell("tenant", undefined, "word")
    name.append(named(tenant.name))
    row.append(
      name, cell("GPU s", shown(tenant.gpu_s)), cell("of all", percent(tenant.fraction)),
      cell("cost", shown(tenant.cost, 2)), cell("rejected", shown(tenant.rejections, 0)),
    )
    return row
  }))
}

const isOverSlo = (model) => model.slo_ms !== null && model.p99_ms !== null && model.p99_ms > model.slo_ms

// The figures at a glance: a name, a value, and where or what it is.
function showTiles(snapshot) {
  const models = snapshot.models, total = (of) => models.reduce((sum, model) => sum + of(model), 0)
  const rate = total((model) => model.rate_rps), counted = total((model) => (model.on_time === null ? 0 : model.rate_rps))
  const good = counted ? total((model) => (model.on_time ?? 0) * model.rate_rps) / counted : null
  const slowest = models.filter((model) => model.slo_ms !== null && model.p99_ms !== null)
    .sort((one, other) => other.p99_ms / other.slo_ms - one.p99_ms / one.slo_ms)[0]
  const busiest = snapshot.workers.reduce((most, worker) => (most === null || worker.busy > most.busy ? worker : most), null)
  const lost = snapshot.workers.filter((worker) => worker.state !== "up").length
  const count = snapshot.workers.length + snapshot.more_workers
  const workersUp = ["Workers up", `${count - lost} of ${count}`, lost ? "some are away or ejected" : "all", lost ? "failed" : ""]
  const bypassed = past?.total.bypassed.at(-1) ?? 0
  const tiles = snapshot.rollout?.mode === "shadow" ? [["Requests/s", digits(bypassed, bypassed < 100 ? 1 : 0), "all bypass the scheduler", ""], workersUp] : [
    ["Requests/s", digits(rate, rate < 100 ? 1 : 0), `${total((model) => model.dropped + model.failed)} dropped or failed`, ""],
    ["On time", percent(good), `in the last ${digits(snapshot.window_s, 0)} s`, grade(good)],
    [slowest ? `Worst p99, SLO ${shown(slowest.slo_ms, 0)} ms` : "Worst p99", slowest ? `${isOverSlo(slowest) ? "▲ " : ""}${shown(slowest.p99_ms)} ms` : "",
      slowest ? slowest.name : "no model with an SLO", slowest && isOverSlo(slowest) ? "failed" : ""],
    ["Waiting", digits(total((model) => model.waiting), 0), "requests in the queue", ""],
    ["Busiest worker", busiest ? percent(busiest.busy) : "", busiest ? busiest.name : "", ""],
    workersUp,
  ]
  by("tiles").replaceChildren(...tiles.map(([name, value, where, grade]) => {
    const tile = element("div", "tile"), about = element("dd", "note")
    about.append(named(where))
    tile.append(element("dt", "", name), element("dd", `value ${grade}`, value || "–"), about)
    return tile
  }))
}

function showShapes(snapshot) {
  const most = Math.max(0.001, ...snapshot.shapes.map((shape) => Math.max(shape.upper_ms, shape.took_ms)))
  by("shapes").tBodies[0].replaceChildren(...snapshot.shapes.map((shape) => {
    const row = element("tr"), bar = element("td", "word bar"), box = element("div"), took = element("i"), plan = element("u")
    const name = shape.partition === shape.model ? shape.model : `${shape.model}: ${shape.partition}`
    took.style.width = `${(100 * shape.took_ms) / most}%`
    if (shape.took_ms > shape.upper_ms) took.className = "over"
    plan.style.left = `${(100 * shape.upper_ms) / most}%`
    box.append(took, plan)
    bar.append(box)
    const nameCell = cell("model", undefined, "word")
    nameCell.append(named(name))
    row.append(
      nameCell, cell("shape", shape.shape, "word"), cell("rows", shape.rows), cell("batches", shape.stages),
      cell("p95 ms", shown(shape.upper_ms, 2)), cell("took ms", shown(shape.took_ms, 2)), cell("longer", percent(shape.over)), bar,
    )
    row.title = shape.device_class
    return row
  }))
}

const SHOWN_DECISIONS = 60
function showDecisions(snapshot, afresh) {
  const list = by("decisions"), lines = snapshot.decisions.map((decided) => {
    const line = element("li"), who = [decided.model, decided.worker && `on ${decided.worker}`, decided.text].filter(Boolean)
    line.append(element("b", decided.what === "lost" || decided.what === "fail" ? "failed" : "", decided.what), " ", who.join(" "))
    if (decided.requests > 1) line.append(`, ${decided.requests} requests`)
    if (decided.why) line.append(element("span", "", `: ${decided.why}`))
    if (decided.request !== null) {
      const why = element("button", "link", "why?")
      why.type = "button"
      why.setAttribute("aria-label", `why, of request ${decided.request}`)
      why.onclick = () => tell(decided.request)
      line.append(" ", why)
    }
    return line
  }).reverse()
  if (snapshot.more_decisions) lines.push(element("li", "", `and ${snapshot.more_decisions} more`))
  if (afresh) list.replaceChildren(...lines)
  else if (!list.contains(document.activeElement)) {
    list.prepend(...lines)
    while (list.children.length > SHOWN_DECISIONS) list.lastChild.remove()
  }
}
