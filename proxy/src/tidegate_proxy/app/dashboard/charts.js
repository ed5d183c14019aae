// Curves over time, drawn by uPlot: an hour of a running Tidegate, or all of a recorded run.
const RANGES_S = { "5 min": 300, "15 min": 900, "1 h": 3600 }
const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]
const MOST_POINTS = 720, MOST_LINES = 8, MOST_OF_LIMIT = 4, LISTS = ["on_time", "late", "dropped", "failed", "bypassed", "p99_ms"]
const OUTCOMES = [["on_time", "on time", "--on-time"], ["late", "late", "--late"], ["dropped", "dropped", "--dropped"], ["failed", "failed", "--failed"], ["bypassed", "bypassed", "--waiting"]]
let past = null, rangeS = 900, drawn = [], drawnAs = ""

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
const sum = (series, at) => series.on_time[at] + series.late[at] + series.dropped[at] + series.failed[at]
const known = (values) => values.filter((value) => value !== null && !Number.isNaN(value))
const last = (values) => values.findLast((value) => value !== null) ?? null
const shareOf = (series) => series.on_time.map((good, at) => (sum(series, at) ? good / sum(series, at) : null))

// Points that follow those here are added; anything else replaces all. Returns whether all have to be asked for.
function takeHistory(news) {
  const names = Object.keys(news.models).join("\n")
  if (past && news.first === past.first + past.at_s.length) {
    if (Object.keys(past.models).join("\n") !== names) return true
    for (const list of ["at_s", "busiest", "busiest_worker", "busy"]) past[list] = [...past[list], ...news[list]].slice(-MOST_POINTS)
    for (const [into, from] of [[past.total, news.total], ...Object.keys(news.models).map((name) => [past.models[name], news.models[name]])]) {
      into.slo_ms = from.slo_ms
      for (const list of LISTS) into[list] = [...into[list], ...from[list]].slice(-MOST_POINTS)
    }
    past.first = news.first + news.at_s.length - past.at_s.length
  } else {
    past = news
    const chosen = by("shown-model").value, all = element("option", "", "All models")
    all.value = ""
    by("shown-model").replaceChildren(all, ...Object.keys(news.models).map((name) => {
      const option = element("option", "", name)
      option.value = name
      return option
    }))
    by("shown-model").value = chosen in news.models ? chosen : ""
  }
  showHistory()
  return false
}

const atTime = (seconds, step) => (hello.kind === "recording" ? clockOf(1000 * seconds)
  : new Date(1000 * seconds).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(step < 60 && { second: "2-digit" }) }))

// Red where a curve is above a limit: a gradient with one hard edge.
const aboveLimit = (limit, above, below) => (plot) => {
  const { top, height } = plot.bbox, edge = Math.min(1, Math.max(0, (plot.valToPos(limit, "y", true) - top) / height))
  const paint = plot.ctx.createLinearGradient(0, top, 0, top + height)
  for (const [at, color] of [[0, above], [edge, above], [edge, below], [1, below]]) paint.addColorStop(at, color)
  return paint
}

// What each chart shows: {title, unit, lines: [{name, color, values, shown, fill, width}], limit, said}.
function chartsOf(model) {
  const from = hello.kind === "recording" ? 0 : past.at_s.findIndex((at) => at > past.at_s.at(-1) - rangeS)
  const cut = (values) => values.slice(from), now = hello.kind === "recording" ? "at the end" : "now"
  const series = (its) => ({ slo_ms: its.slo_ms, ...Object.fromEntries(LISTS.map((list) => [list, cut(its[list])])) })
  const one = series(model ? past.models[model] : past.total), x = cut(past.at_s)
  const all = Object.entries(past.models).map(([name, its]) => [name, series(its)])
  giveColors(Object.keys(past.models))
  const totals = x.map((_, at) => sum(one, at) + one.bypassed[at]), shares = shareOf(one)
  const busiest = all.map(([name, its]) => [name, its, its.on_time.reduce((total, _, at) => total + sum(its, at) + its.bypassed[at], 0)])
    .sort((one, other) => other[2] - one[2]).slice(0, MOST_LINES)
  const single = model ? [[model, one]] : busiest
  let below = totals.map(() => 0)
  const stacked = OUTCOMES.map(([list, name, color]) => {
    below = below.map((sum, at) => sum + one[list][at])
    return { name, color, values: below, own: one[list], fill: color, width: 0 }
  }).filter((line, place) => place === 0 || line.own.some((value) => value > 0)).reverse()
  const rate = {
    title: "Requests per second", unit: "", lines: stacked, floor: 0,
    shown: (value) => digits(value, value < 100 ? 1 : 0),
    said: totals.length ? `${digits(totals.at(-1), 0)} ${now}, at most ${digits(Math.max(...totals), 0)}` : "",
  }
  const lines = model || all.length < 2 ? [] : busiest.map(([name, its]) => ({ name, color: colorOf(name), values: shareOf(its).map(percents), width: 1.5 }))
  const goods = known(shares)
  const attainment = {
    title: "SLO attainment", unit: " %", ceiling: 100, shown: (value) => `${digits(value, 1)} %`,
    lines: [...lines, { name: model || "all models", color: "--ink", values: shares.map(percents), width: 2.5 }],
    said: goods.length ? `${percent(last(shares))} ${now}, at least ${percent(Math.min(...goods))}` : "no requests",
  }
  const timed = single.filter(([, its]) => its.slo_ms !== null && known(its.p99_ms).length)
  const over = x.map((_, at) => timed.some(([, its]) => its.p99_ms[at] !== null && its.p99_ms[at] > its.slo_ms))
  const counted = over.filter(Boolean).length
  const p99 = model
    ? { title: "p99 latency", unit: " ms", limit: one.slo_ms, limitName: `SLO ${shown(one.slo_ms, 0)} ms`, floor: 0,
        shown: (value) => `${digits(value, 1)} ms`, lines: [{ name: model, color: colorOf(model), values: one.p99_ms, width: 2 }] }
    : { title: "p99 latency, of the SLO", unit: " %", limit: timed.length ? 100 : null, limitName: "SLO", floor: 0,
        shown: (value) => `${digits(value, 0)} %`,
        lines: timed.map(([name, its]) => ({ name, color: colorOf(name), values: its.p99_ms.map((ms) => (ms === null ? null : (100 * ms) / its.slo_ms)), width: 2 })) }
  p99.isOver = counted > 0
  p99.said = timed.length === 0 ? "no model with an SLO was answered"
    : counted ? `▲ above the SLO in ${percent(counted / x.length)} of the time` : "within the SLO"
  const workers = cut(past.busiest), names = cut(past.busiest_worker), mean = cut(past.busy)
  const busy = {
    title: "Busy workers", unit: " %", floor: 0, ceiling: 100, shown: (value) => `${digits(value, 0)} %`,
    lines: [{ name: "the busiest", color: "--model-0", values: workers.map(percents), width: 2, nameAt: (at) => names[at] },
      { name: "mean of all", color: "--muted", values: mean.map(percents), width: 1.5, fill: "--sunken" }],
    said: last(workers) === null ? "" : `busiest ${now} ${percent(last(workers))}, at most ${percent(Math.max(...known(workers)))}`,
  }
  return { x, charts: document.body.classList.contains("unscheduled") ? [rate] : [rate, attainment, p99, busy] }
}
const percents = (share) => (share === null ? null : 100 * share)

function showHistory() {
  by("over-time").hidden = false
  const model = by("shown-model").value, { x, charts } = chartsOf(model)
  const more = past.more_models ? `${past.more_models} more models count in the total only. ` : ""
  by("history-note").textContent = x.length ? more : hello.kind === "recording" ? "" : "The first point comes after five seconds."
  const as = JSON.stringify([model, matchMedia("(prefers-color-scheme: dark)").matches, charts.map((chart) => [chart.limit, chart.lines.map((line) => line.name)])])
  if (as !== drawnAs) {
    for (const each of drawn) each.plot.destroy()
    by("charts").replaceChildren()
    drawn = charts.map(chartIn)
    drawnAs = as
  }
  const to = hello.kind === "recording" ? hello.length_ms / 1000 : x.at(-1) ?? 0
  drawn.forEach((each, place) => {
    each.chart = charts[place]
    each.span = [hello.kind === "recording" ? 0 : Math.max(to - rangeS, Math.min(past.at_s[0] ?? 0, to - 60)), to]
    each.plot.setData([x, ...each.chart.lines.map((line) => line.values)])
    each.said.textContent = each.chart.said
    each.said.className = each.chart.isOver ? "said failed" : "said"
    each.plot.ctx.canvas.setAttribute("aria-label", `${each.chart.title}: ${each.chart.said}`)
    each.readOut(null)
  })
}

function chartIn(chart) {
  const box = element("figure"), head = element("figcaption"), said = element("p", "said"), key = element("ul", "legend"), canvas = element("div", "curve")
  head.append(element("h3", "", chart.title), said)
  box.append(head, canvas, key)
  by("charts").append(box)
  const entries = chart.lines.map((line) => {
    const entry = element("li"), swatch = element("span", "swatch"), value = element("b")
    const name = named(line.name)
    swatch.style.background = `var(${line.color})`
    entry.append(swatch, name, value)
    return { name, value, entry }
  })
  key.append(...entries.map((each) => each.entry).reverse())
  const made = { chart, said, span: [0, 1] }
  made.readOut = (at) => made.chart.lines.forEach((line, place) => {
    const values = line.own ?? line.values, value = at === null ? last(values) : values[at]
    entries[place].value.textContent = value === null || value === undefined ? "" : made.chart.shown(value)
    if (line.nameAt) entries[place].name.replaceWith(entries[place].name = named(line.nameAt(at ?? values.length - 1) ?? line.name))
  })
  const muted = ink("--muted"), rule = ink("--rule"), red = ink("--failed"), font = "11px system-ui, sans-serif"
  const isLimited = chart.limit !== null && chart.limit !== undefined
  made.plot = new uPlot({
    width: canvas.clientWidth, height: 190, padding: [10, 16, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "over time" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
    scales: {
      x: { time: false, range: () => made.span },
      y: { range: (_, low, high) => extent(made.chart, low, high) },
    },
    axes: [
      { stroke: muted, font, grid: { show: false }, ticks: { stroke: rule, size: 4 }, incrs: TICKS_S, space: 70, size: 30, values: (_, at, __, ___, step) => at.map((each) => atTime(each, step)) },
      { stroke: muted, font, grid: { stroke: rule, width: 1 }, ticks: { show: false }, size: 52, values: (_, at) => at.map((value) => `${value.toLocaleString("en")}${chart.unit}`) },
    ],
    series: [{}, ...chart.lines.map((line) => ({
      label: line.name, width: line.width, spanGaps: false, points: { show: false },
      stroke: isLimited ? aboveLimit(chart.limit, red, ink(line.color)) : ink(line.color),
      fill: isLimited && chart.lines.length === 1 ? aboveLimit(chart.limit, `${red}38`, "transparent") : line.fill && ink(line.fill),
    }))],
    hooks: {
      setCursor: [(plot) => made.readOut(plot.cursor.idx ?? null)],
      draw: [(plot) => { if (isLimited) drawRule(plot, chart, red, font) ; drawInstant(plot) }],
      ready: [(plot) => { plot.over.onclick = () => { if (hello.kind === "recording") moveTo(Math.min(hello.length_ms, 1000 * plot.posToVal(plot.cursor.left, "x"))) } }],
    },
  }, [[], ...chart.lines.map(() => [])], canvas)
  made.plot.ctx.canvas.setAttribute("role", "img")
  return made
}

// From the least to the greatest value, with the limit, and never so near that noise looks like much.
function extent(chart, low, high) {
  low = chart.floor ?? Math.min(low ?? 98, 98)
  high = chart.ceiling ?? Math.max(high ?? 0, chart.limit ? 1.25 * chart.limit : 1)
  if (chart.limit) high = Math.min(high, MOST_OF_LIMIT * chart.limit)
  return chart.ceiling === undefined ? [low, 1.05 * high] : [low - (chart.floor === undefined ? 0.04 * (high - low) : 0), high + 0.02 * (high - low)]
}

function drawRule(plot, chart, color, font) {
  const y = plot.valToPos(chart.limit, "y", true), { left, width } = plot.bbox, brush = plot.ctx, dense = devicePixelRatio || 1
  brush.save()
  brush.strokeStyle = brush.fillStyle = color
  brush.lineWidth = dense
  brush.setLineDash([4 * dense, 4 * dense])
  brush.beginPath()
  brush.moveTo(left, y)
  brush.lineTo(left + width, y)
  brush.stroke()
  brush.font = font.replace("11px", `${11 * dense}px`)
  brush.textAlign = "left"  // where curves begin, not where the latest values are
  brush.fillText(chart.limitName, left + 6 * dense, y - 5 * dense)
  brush.restore()
}

// The instant of a recorded run that the rest of the page shows.
function drawInstant(plot) {
  if (recordedAt === null) return
  const x = plot.valToPos(recordedAt / 1000, "x", true), { top, height } = plot.bbox
  plot.ctx.fillStyle = ink("--link")
  plot.ctx.fillRect(x - 1, top, 2 * (devicePixelRatio || 1), height)
}

function redraw() {
  for (const each of drawn) each.plot.setSize({ width: each.plot.root.parentElement.clientWidth, height: 190 })
}

by("ranges").append(...Object.entries(RANGES_S).map(([name, seconds]) => chooser("ranges", name, seconds === rangeS, () => { rangeS = seconds; showHistory() })))
by("shown-model").onchange = () => { if (past) showHistory() }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (past) showHistory() })
