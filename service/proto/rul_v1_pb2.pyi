from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Explain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPLAIN_UNSPECIFIED: _ClassVar[Explain]
    EXPLAIN_NONE: _ClassVar[Explain]
    EXPLAIN_ATTENTION: _ClassVar[Explain]
    EXPLAIN_FULL: _ClassVar[Explain]
    EXPLAIN_SENSORS: _ClassVar[Explain]
EXPLAIN_UNSPECIFIED: Explain
EXPLAIN_NONE: Explain
EXPLAIN_ATTENTION: Explain
EXPLAIN_FULL: Explain
EXPLAIN_SENSORS: Explain

class PredictRequest(_message.Message):
    __slots__ = ("model", "explain", "partial", "windows", "store", "costs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    explain: Explain
    partial: bool
    windows: _containers.RepeatedCompositeFieldContainer[Window]
    store: bool
    costs: Costs
    def __init__(self, model: _Optional[str] = ..., explain: _Optional[_Union[Explain, str]] = ..., partial: _Optional[bool] = ..., windows: _Optional[_Iterable[_Union[Window, _Mapping]]] = ..., store: _Optional[bool] = ..., costs: _Optional[_Union[Costs, _Mapping]] = ...) -> None: ...

class Costs(_message.Message):
    __slots__ = ("planned", "failure")
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    planned: float
    failure: float
    def __init__(self, planned: _Optional[float] = ..., failure: _Optional[float] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("unit", "last_cycle", "columns", "readings")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LAST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    last_cycle: float
    columns: Columns
    readings: Readings
    def __init__(self, unit: _Optional[str] = ..., last_cycle: _Optional[float] = ..., columns: _Optional[_Union[Columns, _Mapping]] = ..., readings: _Optional[_Union[Readings, _Mapping]] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("columns",)
    class ColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Series
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Series, _Mapping]] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.MessageMap[str, Series]
    def __init__(self, columns: _Optional[_Mapping[str, Series]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class PredictReply(_message.Message):
    __slots__ = ("model", "predictions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    model: ModelReference
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    def __init__(self, model: _Optional[_Union[ModelReference, _Mapping]] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ...) -> None: ...

class ModelReference(_message.Message):
    __slots__ = ("name", "version", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    sha256: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("unit", "rul", "rul_state", "interval", "failure_probability", "health_state", "attention", "imputed_fraction", "warnings", "sensor_contributions", "error", "trust", "explanation", "decision")
    class FailureProbabilityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class SensorContributionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    UNIT_FIELD_NUMBER: _ClassVar[int]
    RUL_FIELD_NUMBER: _ClassVar[int]
    RUL_STATE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    FAILURE_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_STATE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    IMPUTED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    SENSOR_CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    unit: str
    rul: float
    rul_state: str
    interval: Interval
    failure_probability: _containers.ScalarMap[int, float]
    health_state: HealthState
    attention: Attention
    imputed_fraction: float
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    sensor_contributions: _containers.ScalarMap[str, float]
    error: WindowError
    trust: str
    explanation: Explanation
    decision: Decision
    def __init__(self, unit: _Optional[str] = ..., rul: _Optional[float] = ..., rul_state: _Optional[str] = ..., interval: _Optional[_Union[Interval, _Mapping]] = ..., failure_probability: _Optional[_Mapping[int, float]] = ..., health_state: _Optional[_Union[HealthState, _Mapping]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ..., imputed_fraction: _Optional[float] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., sensor_contributions: _Optional[_Mapping[str, float]] = ..., error: _Optional[_Union[WindowError, _Mapping]] = ..., trust: _Optional[str] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("act_at_cycle", "act_in_cycles", "cost_per_cycle", "run_to_failure_cost_per_cycle", "fixed_interval_cost_per_cycle", "costs")
    ACT_AT_CYCLE_FIELD_NUMBER: _ClassVar[int]
    ACT_IN_CYCLES_FIELD_NUMBER: _ClassVar[int]
    COST_PER_CYCLE_FIELD_NUMBER: _ClassVar[int]
    RUN_TO_FAILURE_COST_PER_CYCLE_FIELD_NUMBER: _ClassVar[int]
    FIXED_INTERVAL_COST_PER_CYCLE_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    act_at_cycle: int
    act_in_cycles: int
    cost_per_cycle: float
    run_to_failure_cost_per_cycle: float
    fixed_interval_cost_per_cycle: float
    costs: Costs
    def __init__(self, act_at_cycle: _Optional[int] = ..., act_in_cycles: _Optional[int] = ..., cost_per_cycle: _Optional[float] = ..., run_to_failure_cost_per_cycle: _Optional[float] = ..., fixed_interval_cost_per_cycle: _Optional[float] = ..., costs: _Optional[_Union[Costs, _Mapping]] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("columns", "cycles", "contributions", "usual", "sentence", "clauses", "together", "agreement", "needed_agreement", "judged_cycles", "skill", "needed_skill")
    class ContributionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Series
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Series, _Mapping]] = ...) -> None: ...
    class UsualEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: UsualRange
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[UsualRange, _Mapping]] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    USUAL_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    CLAUSES_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    NEEDED_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    JUDGED_CYCLES_FIELD_NUMBER: _ClassVar[int]
    SKILL_FIELD_NUMBER: _ClassVar[int]
    NEEDED_SKILL_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    cycles: _containers.RepeatedScalarFieldContainer[float]
    contributions: _containers.MessageMap[str, Series]
    usual: _containers.MessageMap[str, UsualRange]
    sentence: str
    clauses: _containers.RepeatedCompositeFieldContainer[Clause]
    together: Together
    agreement: float
    needed_agreement: float
    judged_cycles: int
    skill: float
    needed_skill: float
    def __init__(self, columns: _Optional[_Iterable[str]] = ..., cycles: _Optional[_Iterable[float]] = ..., contributions: _Optional[_Mapping[str, Series]] = ..., usual: _Optional[_Mapping[str, UsualRange]] = ..., sentence: _Optional[str] = ..., clauses: _Optional[_Iterable[_Union[Clause, _Mapping]]] = ..., together: _Optional[_Union[Together, _Mapping]] = ..., agreement: _Optional[float] = ..., needed_agreement: _Optional[float] = ..., judged_cycles: _Optional[int] = ..., skill: _Optional[float] = ..., needed_skill: _Optional[float] = ...) -> None: ...

class UsualRange(_message.Message):
    __slots__ = ("lower", "upper")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    lower: _containers.RepeatedScalarFieldContainer[float]
    upper: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, lower: _Optional[_Iterable[float]] = ..., upper: _Optional[_Iterable[float]] = ...) -> None: ...

class Clause(_message.Message):
    __slots__ = ("column", "side", "since_cycle", "cycles", "without", "text")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    SINCE_CYCLE_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    column: str
    side: str
    since_cycle: int
    cycles: float
    without: float
    text: str
    def __init__(self, column: _Optional[str] = ..., side: _Optional[str] = ..., since_cycle: _Optional[int] = ..., cycles: _Optional[float] = ..., without: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Together(_message.Message):
    __slots__ = ("columns", "since_cycles", "cycles", "without", "text")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SINCE_CYCLES_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    since_cycles: _containers.RepeatedScalarFieldContainer[int]
    cycles: float
    without: float
    text: str
    def __init__(self, columns: _Optional[_Iterable[str]] = ..., since_cycles: _Optional[_Iterable[int]] = ..., cycles: _Optional[float] = ..., without: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("coverage", "lower", "upper")
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    coverage: float
    lower: float
    upper: float
    def __init__(self, coverage: _Optional[float] = ..., lower: _Optional[float] = ..., upper: _Optional[float] = ...) -> None: ...

class HealthState(_message.Message):
    __slots__ = ("label", "probabilities")
    class ProbabilitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    label: str
    probabilities: _containers.ScalarMap[str, float]
    def __init__(self, label: _Optional[str] = ..., probabilities: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Attention(_message.Message):
    __slots__ = ("cycles", "weights", "contributions", "baseline", "entropy_ratio", "effective_cycles", "evidence", "window_contribution")
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_RATIO_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_CYCLES_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    cycles: _containers.RepeatedScalarFieldContainer[float]
    weights: _containers.RepeatedScalarFieldContainer[float]
    contributions: _containers.RepeatedScalarFieldContainer[float]
    baseline: float
    entropy_ratio: float
    effective_cycles: float
    evidence: _containers.RepeatedScalarFieldContainer[float]
    window_contribution: float
    def __init__(self, cycles: _Optional[_Iterable[float]] = ..., weights: _Optional[_Iterable[float]] = ..., contributions: _Optional[_Iterable[float]] = ..., baseline: _Optional[float] = ..., entropy_ratio: _Optional[float] = ..., effective_cycles: _Optional[float] = ..., evidence: _Optional[_Iterable[float]] = ..., window_contribution: _Optional[float] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("code", "column", "detail")
    CODE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: str
    column: str
    detail: str
    def __init__(self, code: _Optional[str] = ..., column: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class WindowError(_message.Message):
    __slots__ = ("title", "detail", "errors")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    title: str
    detail: str
    errors: _containers.RepeatedCompositeFieldContainer[Problem]
    def __init__(self, title: _Optional[str] = ..., detail: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("pointer", "code", "detail")
    POINTER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    pointer: str
    code: str
    detail: str
    def __init__(self, pointer: _Optional[str] = ..., code: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("reference", "provider", "manifest_json", "columns", "context", "cap", "horizons")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CAP_FIELD_NUMBER: _ClassVar[int]
    HORIZONS_FIELD_NUMBER: _ClassVar[int]
    reference: ModelReference
    provider: str
    manifest_json: str
    columns: _containers.RepeatedCompositeFieldContainer[ModelColumn]
    context: int
    cap: float
    horizons: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reference: _Optional[_Union[ModelReference, _Mapping]] = ..., provider: _Optional[str] = ..., manifest_json: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[ModelColumn, _Mapping]]] = ..., context: _Optional[int] = ..., cap: _Optional[float] = ..., horizons: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelColumn(_message.Message):
    __slots__ = ("name", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("open", "reading")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    open: StreamOpen
    reading: Reading
    def __init__(self, open: _Optional[_Union[StreamOpen, _Mapping]] = ..., reading: _Optional[_Union[Reading, _Mapping]] = ...) -> None: ...

class StreamOpen(_message.Message):
    __slots__ = ("model", "unit", "explain", "first_cycle", "columns", "readings", "store", "costs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    FIRST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    unit: str
    explain: Explain
    first_cycle: float
    columns: Columns
    readings: Readings
    store: bool
    costs: Costs
    def __init__(self, model: _Optional[str] = ..., unit: _Optional[str] = ..., explain: _Optional[_Union[Explain, str]] = ..., first_cycle: _Optional[float] = ..., columns: _Optional[_Union[Columns, _Mapping]] = ..., readings: _Optional[_Union[Readings, _Mapping]] = ..., store: _Optional[bool] = ..., costs: _Optional[_Union[Costs, _Mapping]] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("cycle", "values", "columns")
    class ColumnsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CYCLE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    cycle: float
    values: _containers.RepeatedScalarFieldContainer[float]
    columns: _containers.ScalarMap[str, float]
    def __init__(self, cycle: _Optional[float] = ..., values: _Optional[_Iterable[float]] = ..., columns: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StreamReply(_message.Message):
    __slots__ = ("opened", "prediction", "error")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    opened: StreamOpened
    prediction: Prediction
    error: StreamError
    def __init__(self, opened: _Optional[_Union[StreamOpened, _Mapping]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class StreamOpened(_message.Message):
    __slots__ = ("model", "cycles")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    model: ModelReference
    cycles: int
    def __init__(self, model: _Optional[_Union[ModelReference, _Mapping]] = ..., cycles: _Optional[int] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "title", "detail", "errors", "kept")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    code: int
    title: str
    detail: str
    errors: _containers.RepeatedCompositeFieldContainer[Problem]
    kept: bool
    def __init__(self, code: _Optional[int] = ..., title: _Optional[str] = ..., detail: _Optional[str] = ..., errors: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., kept: _Optional[bool] = ...) -> None: ...

class AppendCyclesRequest(_message.Message):
    __slots__ = ("model", "unit", "explain", "store", "readings", "costs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    unit: str
    explain: Explain
    store: bool
    readings: _containers.RepeatedCompositeFieldContainer[Reading]
    costs: Costs
    def __init__(self, model: _Optional[str] = ..., unit: _Optional[str] = ..., explain: _Optional[_Union[Explain, str]] = ..., store: _Optional[bool] = ..., readings: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., costs: _Optional[_Union[Costs, _Mapping]] = ...) -> None: ...

class AppendCyclesReply(_message.Message):
    __slots__ = ("unit", "model", "stored", "repeated", "last_cycle", "prediction", "refusal")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    LAST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    unit: str
    model: ModelReference
    stored: int
    repeated: int
    last_cycle: int
    prediction: Prediction
    refusal: WindowError
    def __init__(self, unit: _Optional[str] = ..., model: _Optional[_Union[ModelReference, _Mapping]] = ..., stored: _Optional[int] = ..., repeated: _Optional[int] = ..., last_cycle: _Optional[int] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., refusal: _Optional[_Union[WindowError, _Mapping]] = ...) -> None: ...
