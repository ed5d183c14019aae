// Why: the list of requests that ended worst, by keyboard, and the timeline of one.
const worst = by("worst"), timeline = by("timeline")
let chosen = null, asked = null
const PARTS = { batch: "waited for its batch", worker: "waited for its worker", ran: "ran, as planned", longer: "ran longer than planned" }
const CLAIMS = { "on time": "on time", late: "late", dropped: "dropped", failed: "failed" }

function showWorst(snapshot) {
  if (document.activeElement === worst && chosen !== null && snapshot.worst.every((bad) => bad.id !== chosen)) return
  worst.replaceChildren(...snapshot.worst.map((bad) => {
    const line = element("li"), how = element("b", outcomeClass(bad.outcome), CLAIMS[bad.outcome] ?? bad.outcome)
    line.id = `request-${bad.id}`
    line.setAttribute("role", "option")
    line.setAttribute("aria-selected", String(bad.id === chosen))
    line.dataset.request = bad.id
    const late = bad.late_ms === null ? bad.reason : bad.late_ms > 0 ? `${digits(bad.late_ms, 1)} ms late` : `${digits(-bad.late_ms, 1)} ms early`
    line.append(named(bad.model), how, element("span", "", `#${bad.id}, ${late}`), element("span", "", `${digits(bad.latency_ms, 1)} ms`))
    line.onclick = () => { choose(line); tell(bad.id) }
    return line
  }))
  if (chosen !== null && by(`request-${chosen}`)) worst.setAttribute("aria-activedescendant", `request-${chosen}`)
  else worst.removeAttribute("aria-activedescendant")
}

function choose(line) {
  if (!line) return
  for (const each of worst.children) each.setAttribute("aria-selected", String(each === line))
  chosen = Number(line.dataset.request)
  worst.setAttribute("aria-activedescendant", line.id)
  line.scrollIntoView({ block: "nearest" })
}

worst.onkeydown = (event) => {
  const lines = [...worst.children], now = lines.findIndex((line) => Number(line.dataset.request) === chosen)
  const to = { ArrowDown: Math.min(now + 1, lines.length - 1), ArrowUp: Math.max(now - 1, 0), Home: 0, End: lines.length - 1 }[event.key]
  if (to !== undefined) { event.preventDefault(); choose(lines[to]) }
  else if ((event.key === "Enter" || event.key === " ") && now >= 0) { event.preventDefault(); tell(chosen) }
}
worst.onfocus = () => { if (chosen === null || !by(`request-${chosen}`)) choose(worst.firstElementChild) }
by("ask").onsubmit = (event) => { event.preventDefault(); tell(Number(by("number").value)) }

async function tell(request) {
  asked = request
  const answer = await ask(`/dashboard/timeline?request=${request}${recordedAt === null ? "" : `&ms=${Math.round(recordedAt)}`}`)
  if (asked !== request) return
  timeline.hidden = false
  if (answer.error) timeline.replaceChildren(element("p", "", answer.error))
  else timeline.replaceChildren(...timelineOf(answer.data))
  timeline.focus({ preventScroll: true })
  timeline.scrollIntoView({ block: "nearest" })
}

function closeTimeline() {
  if (timeline.hidden) return
  timeline.hidden = true
  asked = null
  worst.focus()
}

function timelineOf(data) {
  const head = element("h3", "", `Request ${data.id}, ${data.model}: ${data.outcome || "not ended"}`)
  const facts = [`${data.rows} row${data.rows > 1 ? "s" : ""}`, data.shape, data.app && `of ${data.app}`,
    data.latency_ms !== null && `${digits(data.latency_ms, 1)} ms`, data.due_ms !== null && `due after ${digits(data.due_ms, 1)} ms`]
  const parts = element("div", "parts"), whole = data.parts.reduce((sum, part) => sum + part.ms, 0) || 1, key = []
  for (const part of data.parts) {
    const bar = element("i", part.what)
    bar.style.width = `${(100 * part.ms) / whole}%`
    bar.title = `${PARTS[part.what]}: ${digits(part.ms, 1)} ms`
    parts.append(bar)
    key.push(`${PARTS[part.what]} ${digits(part.ms, 1)} ms`)
  }
  parts.setAttribute("role", "img")
  parts.setAttribute("aria-label", key.join(", "))
  const made = [head, element("p", "said", data.verdict), element("p", "note", facts.filter(Boolean).join(", ")), parts, element("p", "note", key.join(" · "))]
  if (data.wrong) made.push(element("p", "", `The expectation that was wrong: ${data.wrong}.`))
  if (data.batch !== null) made.push(company(data))
  for (const stage of data.stages) {
    made.push(element("p", "note", `${stage.partition} on ${stage.worker}: ${stage.rows} rows, planned from ${digits(stage.planned_start_ms, 1)} for ${digits(stage.upper_ms, 2)} ms, ran from ${digits(stage.start_ms, 1)} for ${digits(stage.took_ms, 2)} ms`))
  }
  if (data.meanwhile.length) {
    made.push(element("p", "note", `While it waited its workers ran ${data.meanwhile.slice(0, 5).map(([model, batches, ms]) => `${batches} × ${model} (${digits(ms, 0)} ms)`).join(", ")}.`))
  }
  const steps = element("ol", "steps")
  for (const step of data.steps) {
    const line = element("li")
    line.append(element("span", "", `${digits(step.at_ms, 2)} ms`), element("div", "", `${step.what}: ${step.text}`))
    steps.append(line)
  }
  const close = element("button", "", "Close")
  close.type = "button"
  close.onclick = closeTimeline
  return [...made, steps, close]
}

function company(data) {
  const others = data.companions.length + data.more_companions
  const line = element("p", "", others ? `Batch ${data.batch}, ${data.batch_rows} rows, with ${others} other${others > 1 ? "s" : ""}: ` : `Batch ${data.batch}, alone.`)
  for (const [number, one] of data.companions.entries()) {
    const link = element("button", "link", `#${one.id}`)
    link.type = "button"
    link.title = `${one.rows} rows, waited ${digits(one.waited_ms, 1)} ms`
    link.onclick = () => tell(one.id)
    line.append(number ? ", " : "", link)
  }
  if (data.more_companions) line.append(`, and ${data.more_companions} more`)
  return line
}
