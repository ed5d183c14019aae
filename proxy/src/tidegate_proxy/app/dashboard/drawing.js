// The lanes of the workers: what ran in the last seconds, one canvas each.
const KEPT_MS = 10000
let span = 5000, bars = [], lanes = new Map(), showing = null
function takeStages(snapshot, afresh) {
  if (afresh) bars = []
  for (const [worker, name, start, took, planned, rows, requests, batch, first] of snapshot.stages) {
    bars.push({ worker, model: snapshot.names[name], start: start / 1000, took: took / 1000, planned: planned / 1000, rows, requests, batch, first })
  }
  bars = bars.filter((bar) => bar.start + bar.took > snapshot.at_ms - KEPT_MS)
  showing = snapshot
}

function laneOf(worker) {
  if (lanes.has(worker.id)) return lanes.get(worker.id)
  const made = { box: element("div", "lane"), name: element("b"), says: element("span"), canvas: element("canvas") }
  const line = element("p")
  line.append(made.name, made.says)
  made.canvas.setAttribute("role", "img")
  made.canvas.onclick = (event) => {
    const hit = barAt(worker.id, made.canvas, event)
    if (hit) tell(hit.first)
  }
  made.canvas.onmousemove = (event) => {
    const hit = barAt(worker.id, made.canvas, event)
    made.canvas.title = hit
      ? `${hit.model}: batch ${hit.batch}, ${hit.requests} requests, ${hit.rows} rows, ${digits(hit.took, 2)} ms (expected at most ${digits(hit.planned, 2)})`
      : ""
  }
  made.box.append(line, made.canvas)
  lanes.set(worker.id, made)
  return made
}

function barAt(worker, canvas, event) {
  const box = canvas.getBoundingClientRect(), from = showing.at_ms - span
  const at = from + ((event.clientX - box.left) / box.width) * span
  return bars.findLast((bar) => bar.worker === worker && bar.start <= at && at <= bar.start + bar.took)
}

function showWorkers(snapshot) {
  const wanted = []
  for (const worker of snapshot.workers) {
    const lane = laneOf(worker)
    if (lane.name.textContent !== worker.name) lane.name.replaceChildren(named(worker.name))
    lane.says.textContent = `${worker.state}, ${percent(worker.busy)} busy${worker.running ? `, ${worker.running} in flight` : ""}`
    lane.says.title = worker.device_class
    lane.says.className = worker.state === "up" ? "" : "lost"
    const own = bars.filter((bar) => bar.worker === worker.id && bar.start + bar.took > snapshot.at_ms - span)
    lane.canvas.setAttribute("aria-label", `${worker.name}: ${own.length} batches in the last ${span / 1000} s`)
    wanted.push(lane.box)
  }
  const here = new Set(snapshot.workers.map((worker) => worker.id))
  for (const id of lanes.keys()) if (!here.has(id)) lanes.delete(id)
  const axis = element("div", "axis")
  for (const label of [`${span / 1000} s before`, `${span / 2000} s`, recordedAt === null ? "now" : clockOf(snapshot.at_ms)]) axis.append(element("span", "", label))
  if (snapshot.more_workers) wanted.push(element("p", "note", `${snapshot.more_workers} more are not shown`))
  by("lanes").replaceChildren(...wanted, axis)
  const models = [...new Set(bars.map((bar) => bar.model))].slice(0, MODELS + 1)
  by("legend").replaceChildren(...models.map((model) => {
    const entry = element("li"), swatch = element("span", "swatch")
    swatch.style.background = `var(${colorOf(model)})`
    entry.append(swatch, named(model))
    return entry
  }))
  for (const worker of snapshot.workers) draw(worker.id, lanes.get(worker.id).canvas, snapshot.at_ms)
}

function draw(worker, canvas, until) {
  const wide = canvas.clientWidth, dense = window.devicePixelRatio || 1, high = 16
  if (canvas.width !== Math.round(wide * dense)) { canvas.width = Math.round(wide * dense); canvas.height = high * dense }
  const brush = canvas.getContext("2d"), from = until - span, scale = wide / span
  brush.setTransform(dense, 0, 0, dense, 0, 0)
  brush.clearRect(0, 0, wide, high)
  const notch = ink("--ink"), over = ink("--failed"), palette = new Map()
  for (const bar of bars) {
    if (bar.worker !== worker) continue
    if (!palette.has(bar.model)) palette.set(bar.model, ink(colorOf(bar.model)))
    const x = (bar.start - from) * scale, w = Math.max(0.5, bar.took * scale)
    brush.fillStyle = palette.get(bar.model)
    brush.fillRect(x, 1, Math.max(0.5, w - 0.5), high - 2)
    const planned = bar.planned * scale
    if (planned < w - 1) { brush.fillStyle = over; brush.fillRect(x + planned, high - 4, w - planned, 3) }
    if (planned > 6) { brush.fillStyle = notch; brush.fillRect(x + Math.min(planned, w) - 0.5, 0, 1, 4) }
  }
}

by("spans").append(...[1, 2, 5, 10].map((seconds) => chooser("spans", `${seconds} s`, 1000 * seconds === span, () => {
  span = 1000 * seconds
  if (showing) showWorkers(showing)
})))
