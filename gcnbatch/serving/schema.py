"""Schemas of requests and answers: they check requests, and the OpenAPI description is made from them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from gcnbatch import __version__

JSON, CSV, HTML = "application/json", "text/csv", "text/html"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str = Field("", description="Name of the model; empty: the only one, or that of the path.")


class PredictRequest(_Request):
    """Molecules to predict."""

    smiles: list[str] = Field(min_length=1, description="SMILES, one per molecule.")
    applicability: bool = Field(False, description="Add similarity and distance to the nearest training molecule.")


class ExplainRequest(_Request):
    """A molecule to explain."""

    smiles: str


class Output(BaseModel):
    """An output of a molecule; fields that the model does not give are absent."""

    value: float | None = Field(None, description="Probability, or value in the output's unit.")
    deviation: float | None = Field(None, description="Standard deviation over the models.")
    low: float | None = Field(None, description="Lower end of the conformal interval.")
    high: float | None = Field(None, description="Upper end of the conformal interval.")
    calibrated: float | None = Field(None, description="Calibrated probability.")
    set: str | None = Field(None, description="Conformal set of labels, joined by |; {} without a label.")
    class_: str | None = Field(None, alias="class", description="Predicted class of a multiclass task.")


class Molecule(BaseModel):
    """A predicted molecule."""

    id: str = Field(description="Id of the CSV, else the number of the row.")
    smiles: str
    outputs: dict[str, Output] | None = Field(description="Outputs by name; null with an error.")
    nearest_similarity: float | None = Field(None, description="Tanimoto similarity to the nearest training molecule.")
    embedding_distance: float | None = Field(
        None, description="Distance to the nearest training molecule in the embedding; 1 is typical."
    )
    error: str | None = Field(description="Why there is no prediction.")


class Predicted(BaseModel):
    """Predicted molecules, in the order of the request."""

    model: str
    molecules: list[Molecule]


class Part(BaseModel):
    """An atom, by its symbol, or a feature of the whole molecule, and what it adds to the output."""

    name: str
    attribution: float


class Explained(BaseModel):
    """What the parts of a molecule add to an output: integrated gradients."""

    output: str
    prediction: float | None
    atoms: list[Part]
    features: list[Part] = Field(description="The strongest features of the whole molecule.")
    completeness_error: float = Field(description="Difference between the sum of all attributions and the output.")


class Nearest(BaseModel):
    """A training molecule."""

    id: str
    smiles: str
    similarity: float
    measured: dict[str, float | str | None]


class Explanation(BaseModel):
    """Explanation of a prediction."""

    model: str
    smiles: str = Field(description="The molecule with its atoms in the order of the attributions.")
    outputs: list[Explained]
    nearest: list[Nearest]
    drawing: str = Field(description="SVG with a panel for each output.")
    notes: list[str]


class OutputName(BaseModel):
    """An output of a model."""

    name: str
    unit: str


class ModelInfo(BaseModel):
    """A model."""

    name: str
    target: str = Field(description="binary, multiclass or regression")
    outputs: list[OutputName]
    networks: int
    backend: str = Field(description="It predicts all but small requests, for which the CPU may take less time.")
    level: float | None = Field(description="Level of intervals and sets; null: there are none.")
    applicability: str = Field(description="Empty, or why there is no applicability domain.")


class Health(BaseModel):
    """State of the server."""

    status: str = Field(description="ok or failed")
    waiting: int = Field(description="Molecules that wait.")
    version: str


class Refusal(BaseModel):
    """Why a request was refused."""

    error: str


STATUSES = {
    401: "A key is missing or wrong.",
    404: "No such path, or no model of that name.",
    406: "The header Accept names no supported media type.",
    408: "The body arrives too slowly.",
    413: "The body is too large, or has too many molecules.",
    415: "The content type is not supported.",
    421: "The header Host names another machine.",
    422: "The body is not as expected, or a table cannot be read.",
    500: "The prediction failed.",
    503: "Too many molecules wait, or the models are gone.",
    504: "The prediction takes too long.",
}
OF_CSV = {
    "model": "Name of the model.",
    "smiles_column": "Column of SMILES; empty: as in training, else detected.",
    "id_column": "Column of ids; empty: as in training, else detected.",
    "delimiter": "Sign between fields: comma, semicolon, tab or bar; empty: detected.",
    "decimal": "Decimal sign of measured values: . or ,; empty: detected.",
    "encoding": "Encoding, such as cp1252; empty: UTF-8 or UTF-16.",
    "applicability": "1: add similarity and distance to the nearest training molecule.",
}


_MODELS = (PredictRequest, Predicted, ExplainRequest, Explanation, ModelInfo, Health, Refusal)
_TEXT = {"type": "string"}
_REFERENCE = "#/components/schemas/{model}"


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _call(summary: str, answers: dict[str, Any], statuses: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Return an operation with its responses; `answers` are schemas by content type."""
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": _contents(answers)}}
    refusal = _contents({JSON: _reference(Refusal)})
    responses |= {str(status): {"description": STATUSES[status], "content": refusal} for status in statuses}
    return {"summary": summary, "responses": responses, **more}


def _contents(schemas: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}


def openapi(keys: bool) -> dict[str, Any]:
    """Return the OpenAPI description; with `keys`, requests need one."""
    every = (401, 421) if keys else (421,)
    working = (*every, 404, 406, 408, 413, 415, 422, 500, 503, 504)
    paths: dict[str, Any] = {
        "/health": {
            "get": _call("State of the server; needs no key.", {JSON: _reference(Health)}, (503,), security=[])
        },
        "/models": {"get": _call("The models.", {JSON: {"type": "array", "items": _reference(ModelInfo)}}, every)},
    }
    named = [_parameter("name", "path", "Name of the model.")]
    of_csv = [_parameter(name, "query", f"Of a CSV. {text}") for name, text in OF_CSV.items()]
    predict = "Predict molecules. A CSV is answered by a CSV unless the header Accept asks for another kind."
    explain = "Explain a prediction: attributions of atoms, and the nearest training molecules."
    for start, own in (("", []), ("/models/{name}", named)):
        for name, summary, parameters, models, texts in (
            ("predict", predict, own + of_csv, (PredictRequest, Predicted), {CSV: _TEXT}),
            ("explain", explain, own, (ExplainRequest, Explanation), {}),
        ):
            given, found = ({JSON: _reference(model)} | texts for model in models)
            body = {"required": True, "content": _contents(given)}
            call = _call(summary, found | {HTML: _TEXT}, working, requestBody=body, parameters=parameters)
            paths[f"{start}/{name}"] = {"post": call}
    _, schemas = models_json_schema([(one, "validation") for one in _MODELS], ref_template=_REFERENCE)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "gcnbatch serve", "version": __version__, "description": "Predictions of trained models."},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas["$defs"].items()))},
    }
    if keys:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"key": []}]
    return described


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": _TEXT, "description": text}
