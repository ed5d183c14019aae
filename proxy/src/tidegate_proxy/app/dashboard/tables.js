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
const colorOf = (model) => {
  if (!colors.has(model)) colors.set(model, colors.size < MODELS ? `--model-${colors.size}` : "--other")
  return colors.get(model)
}
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
  by("models").tBodies[0].replaceChildren(...snapshot.models.map((model) => {
    const row = element("tr"), name = cell("model", undefined, "word"), swatch = element("span", "swatch")
    swatch.style.background = `var(${colorOf(model.name)})`
    name.append(swatch, model.name)
    name.title = model.name
    const sized = cell("batches", undefined, "word sized")
    sized.append(sizesOf(model.sizes))
    row.append(
      name, cell("req/s", shown(model.rate_rps)), cell("in time", percent(model.on_time), `share ${grade(model.on_time)}`),
      cell("p50", shown(model.p50_ms)), cell("p99", shown(model.p99_ms)), cell("SLO", shown(model.slo_ms, 0)),
      cell("waiting", shown(model.waiting, 0)), cell("late", shown(model.on_deadline_miss, 0)),
      cell("dropped", shown(model.dropped, 0)), cell("failed", shown(model.failed, 0)),
      cell("rows", shown(model.mean_rows)), sized,
    )
    return row
  }))
  const more = snapshot.more_models ? `; ${snapshot.more_models} more are not shown` : ""
  by("models-note").textContent = `Of the last ${digits(snapshot.window_s, 0)} s${more}.`
  let rate = 0, good = 0, counted = 0
  for (const model of snapshot.models) {
    rate += model.rate_rps
    if (model.on_time !== null) { good += model.on_time * model.rate_rps; counted += model.rate_rps }
  }
  by("verdict").textContent = counted
    ? `${digits(100 * good / counted, 1)} % of ${digits(rate, rate < 100 ? 1 : 0)} requests/s are on time`
    : "Nothing is asked at present"
}

function showShapes(snapshot) {
  const most = Math.max(0.001, ...snapshot.shapes.map((shape) => Math.max(shape.upper_ms, shape.took_ms)))
  by("shapes").tBodies[0].replaceChildren(...snapshot.shapes.map((shape) => {
    const row = element("tr"), bar = element("td", "bar"), box = element("div"), took = element("i"), plan = element("u")
    const name = shape.partition === shape.model ? shape.model : `${shape.model}: ${shape.partition}`
    took.style.width = `${(100 * shape.took_ms) / most}%`
    if (shape.took_ms > shape.upper_ms) took.className = "over"
    plan.style.left = `${(100 * shape.upper_ms) / most}%`
    box.append(took, plan)
    bar.append(box)
    row.append(
      cell("model", name, "word"), cell("shape", shape.shape, "word"), cell("rows", shape.rows), cell("batches", shape.stages),
      cell("planned", shown(shape.upper_ms, 2)), cell("took", shown(shape.took_ms, 2)), cell("longer", percent(shape.over)), bar,
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
