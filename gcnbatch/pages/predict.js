// The page of `gcnbatch serve`: asks for tables and explanations, which the server makes, and shows them.
const part = (id) => document.getElementById(id);
const [ask, smiles, file, state, answer, explanation] =
  ["ask", "smiles", "file", "state", "answer", "explanation"].map(part);
let last = null; // what the table shows: path, type and body
let dropped = null; // a CSV
function say(text, failed = false) {
  state.textContent = text;
  document.body.classList.toggle("failed", failed);
}
async function post(path, type, body, accept) {
  const headers = { "Content-Type": type, Accept: accept };
  if (part("key")?.value) headers.Authorization = `Bearer ${part("key").value}`;
  const found = await fetch(`models/${encodeURIComponent(part("model").value)}/${path}`, { method: "POST", headers, body });
  if (!found.ok) throw new Error((await found.json().catch(() => ({}))).error ?? `status ${found.status}`);
  return found;
}
// One thing at a time: a second one waits for the first one's end, and an error is shown.
let busy = false;
async function working(text, work) {
  if (busy) return;
  busy = true;
  say(text);
  try {
    say((await work()) ?? "");
  } catch (error) {
    say(error.message, true);
  }
  busy = false;
}
function request() {
  if (dropped) return { path: "predict?applicability=1", type: "text/csv", body: dropped };
  const lines = smiles.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!lines.length) throw new Error("no SMILES: paste some, draw a molecule, or drop a CSV");
  return { path: "predict", type: "application/json", body: JSON.stringify({ smiles: lines, applicability: true }) };
}
function predict() {
  return working("Predicting …", async () => {
    explanation.replaceChildren();
    const asked = request();
    const found = await post(asked.path, asked.type, asked.body, "text/html");
    answer.innerHTML = await found.text();
    last = asked;
    part("download").disabled = false;
    for (const row of answer.querySelectorAll("tr[data-smiles]")) {
      if (row.querySelector("td[colspan]")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "explain";
      button.textContent = "Explain";
      button.setAttribute("aria-label", `Explain ${row.dataset.smiles}`);
      button.addEventListener("click", () => explain(row.dataset.smiles));
      row.cells[0].append(button);
    }
    const count = answer.querySelectorAll("tr[data-smiles]").length;
    return `${count} ${count === 1 ? "molecule" : "molecules"}`;
  });
}
function explain(text) {
  return working("Explaining …", async () => {
    const found = await post("explain", "application/json", JSON.stringify({ smiles: text }), "text/html");
    explanation.innerHTML = await found.text();
    explanation.focus();
    explanation.scrollIntoView({ block: "start" });
  });
}
function download() {
  return working("Downloading …", async () => {
    const found = await post(last.path, last.type, last.body, "text/csv");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await found.blob());
    link.download = "predictions.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });
}
function take(csv) {
  dropped = csv ?? null;
  if (csv) predict();
}
ask.addEventListener("submit", (event) => {
  event.preventDefault();
  predict();
});
part("download").addEventListener("click", download);
smiles.addEventListener("input", () => {
  dropped = null;
  file.value = "";
});
smiles.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) predict();
});
file.addEventListener("change", () => take(file.files[0]));
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
addEventListener("dragleave", () => document.body.classList.remove("dropping"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  take(event.dataTransfer.files[0]);
});
// The editor is loaded when it is first opened; its molecule becomes the first line.
let frame = null;
part("draw").addEventListener("toggle", () => {
  if (frame || !part("draw").open) return;
  frame = document.createElement("iframe");
  frame.title = "Molecule editor";
  frame.src = "editor/index.html";
  part("editor").append(frame);
});
addEventListener("message", (event) => {
  if (event.source !== frame?.contentWindow || typeof event.data?.smiles !== "string") return;
  smiles.value = [event.data.smiles, ...smiles.value.split("\n").slice(1)].join("\n");
  dropped = null;
  file.value = "";
});
