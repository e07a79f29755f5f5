"""The pages of the server: predictions, description of the interface, and the frame of the molecule editor.

Molecules are drawn with JSME (B. Bienfait and P. Ertl, J. Cheminf. 5:24, 2013; BSD, see ``jsme/license.txt``). The
folder ``jsme`` has files of the npm package jsme-editor 0.8.2 as they are: its code for WebKit and Gecko, but not that
for old browsers and for InChI. JSME compiles code at run time. So it has its own frame, whose content security
policy forbids requests; the policy of the page allows no such code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcnbatch.pages.document import document
from gcnbatch.pages.elements import Html, code, paragraph, section, table
from gcnbatch.text import html

JSME = Path(__file__).with_name("jsme")
FRAME_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:"
)
FRAME_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Molecule editor</title>
<style>body { margin: 0; background: #fff; } #editor { width: 100%; height: 360px; }</style></head>
<body><div id="editor"></div>
<script>
function tell() {
  parent.postMessage({ smiles: drawing.smiles() }, location.origin);
}
function jsmeOnLoad() {
  window.drawing = new JSApplet.JSME("editor", "100%", "360px", { options: "hydrogens" });
  drawing.setCallBack("AfterStructureModified", tell);
}
</script><script src="jsme.nocache.js"></script></body></html>
"""
_EXAMPLES = """\
curl http://127.0.0.1:8000/predict -H 'Content-Type: application/json' -d '{"smiles": ["CCO", "c1ccccc1"]}'
curl http://127.0.0.1:8000/predict -H 'Content-Type: text/csv' --data-binary @molecules.csv -o predictions.csv
curl http://127.0.0.1:8000/models -H 'Authorization: Bearer KEY'"""


def main(models: Sequence[str], keys: bool) -> str:
    """Return the page of predictions for these models; with `keys`, it asks for one."""
    options = "".join(f'<option value="{html(name)}">{html(name)}</option>' for name in models)
    hidden = "" if len(models) > 1 else " hidden"
    key = '<label>key <input id="key" type="password" autocomplete="off"></label>' if keys else ""
    form = (
        f'<form id="ask"><label{hidden}>model <select id="model">{options}</select></label>{key}'
        '<label class="wide">SMILES, one per line <textarea id="smiles" rows="5" spellcheck="false" '
        'placeholder="CC(=O)Oc1ccccc1C(=O)O" autofocus></textarea></label>'
        '<details id="draw"><summary>Draw a molecule</summary><div id="editor"></div></details>'
        '<label>or a CSV, also dropped on this page <input id="file" type="file" accept=".csv,text/csv"></label>'
        '<div class="buttons"><button>Predict</button> '
        '<button type="button" id="download" disabled>Download CSV</button> '
        '<output id="state" role="status" aria-live="polite"></output></div></form>'
    )
    lead = "Values with their standard deviation and the interval that holds the measured value at the model's level."
    body = [
        paragraph(lead, "lead"),
        Html(form),
        Html('<div id="answer"></div><div id="explanation" tabindex="-1"></div>'),
        Html('<p class="note"><a href="docs">Interface for programs</a></p>'),
    ]
    title = f"Predictions of {models[0]}" if len(models) == 1 else "Predictions"
    return document(title, body, more="predict", allowed="connect-src 'self'; frame-src 'self'")


def interface(described: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI description."""
    body = [paragraph("openapi.json describes the same for programs.", "lead"), code(_EXAMPLES)]
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            body.append(section(f"{method.upper()} {path}", *_call(call)))
    for name, schema in described["components"]["schemas"].items():
        body.append(section(name, *_schema(schema)))
    return document("Interface", body)


def _call(call: Mapping[str, Any]) -> Iterator[Html]:
    yield paragraph(call["summary"])
    rows = [
        ["body", kind, _kind(of["schema"])] for kind, of in call.get("requestBody", {"content": {}})["content"].items()
    ]
    rows += [[one["in"], one["name"], one.get("description", "")] for one in call.get("parameters", ())]
    for status, of in call["responses"].items():
        kinds = ", ".join(f"{kind} {_kind(one['schema'])}".strip() for kind, one in of["content"].items())
        rows.append([status, kinds, of["description"]])
    yield table(["", "what", "remark"], rows, words=(0, 1, 2), sortable=False)


def _schema(schema: Mapping[str, Any]) -> Iterator[Html]:
    yield paragraph(schema.get("description", ""))
    rows = [[name, _kind(of), of.get("description", "")] for name, of in schema.get("properties", {}).items()]
    if rows:
        yield table(["field", "type", "meaning"], rows, words=(0, 1, 2), sortable=False)


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a type in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if isinstance(of := schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(of)}"
    return str(schema.get("type", ""))
