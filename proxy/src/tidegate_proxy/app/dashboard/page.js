// Where the snapshots come from: a server that goes on, or a recording in which one moves.
let token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("tidegate-token") || ""
let paused = false, latest = null, recordedAt = null, hello = null

const headers = () => ({ "x-tidegate-page": "1", ...(token && { authorization: `Bearer ${token}` }) })

async function ask(path, method = "GET") {
  try {
    const answer = await fetch(path, { method, headers: headers() })
    const text = await answer.text()
    if (answer.ok) return { data: JSON.parse(text) }
    let error = text
    try { error = JSON.parse(text).error } catch { /* no JSON: unchanged */ }
    return { error, status: answer.status }
  } catch {
    return { error: "no answer: does it still run?", status: 0 }
  }
}

function say(text) {
  by("state").textContent = text
  by("state").className = text === "live" ? "is-live" : ""
}

function show(snapshot, afresh = false) {
  latest = snapshot
  if (snapshot.policy) by("title").textContent = `Tidegate ${hello.version}, policy ${snapshot.policy}`
  showModels(snapshot)
  showRollout(snapshot.rollout)
  by("tuning").textContent = snapshot.tuning
  showTenants(snapshot.tenants)
  by("restrictions").textContent = snapshot.restrictions.map((words) => `${words}.`).join(" ")
  takeStages(snapshot, afresh)
  showWorkers(snapshot)
  showShapes(snapshot)
  showDecisions(snapshot, afresh)
  showWorst(snapshot)
  by("cost").textContent = recordedAt === null
    ? `${snapshot.viewers} viewer${snapshot.viewers === 1 ? "" : "s"}; snapshots take ${digits(snapshot.cost_ms_per_s, 1)} ms of CPU per second.`
    : ""
}

async function follow() {
  for (let wait = 500; ; wait = Math.min(wait * 2, 10000)) {
    try {
      const answer = await fetch("/dashboard/events", { headers: headers(), cache: "no-store" })
      if (answer.status === 401) return locked()
      if (!answer.ok) throw new Error((await answer.json()).error)
      say("live")
      wait = 500
      await read(answer.body.getReader())
      throw new Error("the connection has ended")
    } catch (error) {
      say(`not connected (${error.message}), trying again`)
    }
    await new Promise((resolve) => setTimeout(resolve, wait))
  }
}

async function read(stream) {
  const decoder = new TextDecoder()
  let text = "", last = -1
  for (;;) {
    const { value, done } = await stream.read()
    if (done) return
    text += decoder.decode(value, { stream: true })
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const snapshot = JSON.parse(text.slice(6, end))
      const again = snapshot.at_ms < last
      last = snapshot.at_ms
      if (!paused) show(snapshot, again)
    }
  }
}

function locked() {
  sessionStorage.removeItem("tidegate-token")
  say(token ? "this token is not known" : "")
  by("verdict").textContent = "Who asks?"
  by("key").hidden = false
  by("token").focus()
}
by("key").onsubmit = (event) => {
  event.preventDefault()
  token = by("token").value
  by("token").value = ""
  by("key").hidden = true
  begin()
}

by("pause").onclick = () => {
  paused = !paused
  by("pause").setAttribute("aria-pressed", String(paused))
  by("pause").textContent = paused ? "Go on" : "Pause"
}

async function simulate() {
  const button = by("what-if")
  if (button.disabled) return
  button.disabled = true
  by("what-if-state").textContent = "simulating …"
  const answer = await ask(`/dashboard/what-if${recordedAt === null ? "" : `?ms=${Math.round(recordedAt)}`}`, "POST")
  button.disabled = false
  if (answer.error) { by("what-if-state").textContent = answer.error; return }
  const data = answer.data
  by("what-if-state").textContent = `${data.requests} requests of ${digits(data.seconds, 0)} s, in ${digits(data.took_s, 1)} s`
  by("answers").replaceChildren(...data.answers.map(whatIfOf))
  if (data.actual !== null) by("answers").prepend(element("p", "note", `Measured live: ${percent(data.actual)} of them were on time. How near "${data.answers[0].name}" comes to that says how far to trust the others.`))
}

function whatIfOf(answer, place) {
  const box = element("div", place ? "answer" : "answer now"), line = element("p"), meter = element("div", "meter"), bar = element("i")
  const value = element("span", answer.share === null ? "note" : grade(answer.share), answer.share === null ? answer.why : percent(answer.share))
  line.append(element("b", "", answer.name), value)
  bar.style.width = `${100 * (answer.share ?? 0)}%`
  meter.append(bar)
  box.append(line, meter)
  if (answer.gain) box.append(element("p", `note ${gainClass(answer.gain)}`, `${points(answer.gain[0])} to ${points(answer.gain[1])} points (95 %)`))
  return box
}
by("what-if").onclick = simulate

// A recording ----------------------------------------------------------------------------------------------------

const clockOf = (ms) => `${Math.floor(ms / 60000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`

async function moveTo(ms) {
  recordedAt = ms
  by("at").setAttribute("aria-valuetext", clockOf(ms))
  by("at").value = String(ms)
  by("shown-at").textContent = `The rest of the page shows ${clockOf(ms)} of ${clockOf(hello.length_ms)}. Arrows, or a click on a chart, move it.`
  if (past) showHistory()
  const answer = await ask(`/dashboard/at?ms=${Math.round(ms)}`)
  if (recordedAt !== ms) return
  if (answer.error) say(answer.error)
  else show(answer.data, true)
}

// A recording is read in the background; what is shown grows until all of it is read.
async function readHistory() {
  for (;;) {
    const answer = await ask("/dashboard/history")
    if (answer.error) { say(answer.error); return }
    takeHistory(answer.data)
    if (answer.data.error) { say(`recording, readable up to ${clockOf(answer.data.read_ms)} only: ${answer.data.error}`); return }
    if (answer.data.done) { say("recording"); return }
    say(`recording, read up to ${clockOf(answer.data.read_ms)}`)
    await new Promise((resolve) => setTimeout(resolve, 500))
  }
}

// A running Tidegate adds a point every five seconds; a page that was reloaded gets the last hour.
async function followHistory() {
  for (let since = 0; ;) {
    const answer = await ask(`/dashboard/history?since=${since}`)
    if (answer.data && !paused) since = takeHistory(answer.data) ? 0 : past.first + past.at_s.length
    if (since) await new Promise((resolve) => setTimeout(resolve, 5000))
    else await new Promise((resolve) => setTimeout(resolve, 1000))
  }
}

function openRecording() {
  by("moments").hidden = false
  by("ranges").hidden = true
  by("pause").hidden = true
  by("title").textContent = `${hello.name}: policy ${hello.policy}, read by Tidegate ${hello.version}`
  const at = by("at")
  at.max = String(Math.ceil(hello.length_ms / 1000) * 1000)
  at.value = String(Math.min(10000, hello.length_ms))
  at.oninput = () => moveTo(Math.min(Number(at.value), hello.length_ms))
  moveTo(Math.min(Number(at.value), hello.length_ms))
  readHistory()
}

async function begin() {
  const answer = await ask("/dashboard/hello")
  if (answer.status === 401) return locked()
  if (answer.status === 403) { by("verdict").textContent = answer.error; return }
  if (answer.error) {
    say(answer.error)
    setTimeout(begin, 2000)
    return
  }
  if (token) sessionStorage.setItem("tidegate-token", token)
  if (location.hash) history.replaceState(null, "", location.pathname)
  hello = answer.data
  if (hello.kind === "recording") return openRecording()
  by("title").textContent = `Tidegate ${hello.version}, policy ${hello.policy}`
  follow()
  followHistory()
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return closeTimeline()
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return
  if (event.key === "p" && !by("pause").hidden) by("pause").click()
  else if (event.key === "w") { event.preventDefault(); worst.focus() }
  else if (event.key === "s") simulate()
})
window.addEventListener("hashchange", () => { if (location.hash.startsWith("#token=")) location.reload() })
window.addEventListener("resize", () => {
  if (latest) showWorkers(latest)
  redraw()
})
begin()
