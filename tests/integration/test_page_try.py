"""The web page's try view, in real Chromium on a real service: simulated units, files, the same call."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import grpc
import pytest
from google.protobuf import json_format
from playwright.sync_api import expect

from service.proto import rul_v1_pb2 as pb
from service.proto import rul_v1_pb2_grpc
from tests.browser import desktop, each_look, expecting, screenshot_folder, visit
from tests.integration.conftest import running

SECONDS = 60


@pytest.fixture(scope="module")
def life(service):
    return service.ask("GET", "/v1/models/fd001/simulated?seed=11").json()


@pytest.fixture
def opened(opened):
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.go("#/try")
    opened.page.locator(".life").wait_for()
    return opened


@pytest.fixture
def opened_with_two(browser, look, tmp_path):
    """The page of a service with two models."""
    with (
        running(tmp_path, "fd001,fd002") as started,
        visit(browser, started.http, look, screenshot_folder(tmp_path)) as opened,
    ):
        opened.go("#/try")
        opened.page.locator(".life").wait_for()
        yield opened


def drop(opened, name, text, *, encoding="utf-8"):
    """Give the page a file, and wait for what it says of it."""
    file = {"name": name, "mimeType": "text/csv", "buffer": text.encode(encoding)}
    opened.page.set_input_files("#try-file", file)
    return opened.page


def csv(life, *, cycles, names=None, separator=",", unit="A", skip=()):
    columns = {name: values for name, values in life["columns"].items() if name not in skip}
    lines = [separator.join(["unit", "cycle", *(names or columns)])]
    for i in range(cycles):
        cells = [unit, str(i + 1), *(str(values[i]) for values in columns.values())]
        lines.append(separator.join(cells).replace(".", ",") if separator == ";" else separator.join(cells))
    return "\n".join(lines)


def answer(page):
    return int(re.search(r"\d+", page.locator(".answer-rul").inner_text())[0])


@each_look
def test_a_simulated_unit_is_answered_with_its_truth(opened):
    page = opened.page

    expect(page.get_by_text("true RUL")).to_be_visible()
    expect(page.locator("figure.tall")).to_contain_text("dashed: truth")
    expect(page.get_by_role("region", name="Why").locator(".trust")).to_be_visible()
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("try", whole=True)


@desktop
def test_a_later_cycle_leaves_fewer_cycles(opened):
    page = opened.page
    before = answer(page)
    page.get_by_label(re.compile("Answer at cycle")).press("End")

    expect(page.get_by_text(re.compile("true RUL 0"))).to_be_visible()
    assert answer(page) < before
    assert page.evaluate("document.activeElement.id") == "try-cycle"


@desktop
def test_nothing_that_is_tried_is_stored(opened, service):
    opened.page.get_by_role("button", name="Take a simulated unit").click()
    expect(opened.page.get_by_text("Simulated unit 8")).to_be_visible()
    opened.page.locator(".life").wait_for()

    assert service.ask("GET", "/v1/units").json()["units"] == []


@each_look
def test_a_file_is_matched_by_name_and_its_mismatches_are_explained(opened, life):
    names = [name.upper().replace("_", " ") for name in life["columns"] if name != "sensor_9"]
    text = csv(life, cycles=90, names=[*names, "oil"], separator=";", skip=["sensor_9"])
    lines = text.splitlines()
    lines[5] = lines[5].replace(lines[5].split(";")[5], "broken", 1)
    page = drop(opened, "mine.csv", "\n".join([lines[0], *(f"{line};1" for line in lines[1:])]))

    mismatches = page.get_by_role("list", name="Mismatches")
    expect(mismatches).to_contain_text("The file has no column for sensor_9")
    expect(mismatches).to_contain_text("The model does not read oil")
    expect(mismatches).to_contain_text("“broken”")
    expect(page.get_by_text("16 of 17 columns of fd001")).to_be_visible()
    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()
    expect(page.get_by_role("list", name="Warnings")).to_contain_text("sensor_9")
    opened.check_fits()
    opened.check_accessible()
    opened.shoot("try-file", whole=True)


@each_look
def test_long_names_of_a_file_its_unit_and_its_columns_fit(opened, life):
    names = [*list(life["columns"])[:-1], "y" * 200]
    page = drop(opened, f"{'n' * 200}.csv", csv(life, cycles=60, names=names, unit="u" * 200))
    expect(page.get_by_role("heading", name=f"Unit {'u' * 200}")).to_be_visible()

    opened.check_fits()


@desktop
def test_a_file_of_several_units_has_one_chosen(opened, life):
    second = csv(life, cycles=150, unit="B\u200b").splitlines()[1:]
    page = drop(opened, "two.csv", csv(life, cycles=60) + "\n" + "\n".join(second))
    page.get_by_label("Unit", exact=True).select_option("B⟨U+200B⟩")

    expect(page.get_by_role("heading", name="Unit B⟨U+200B⟩")).to_be_visible()
    expect(page.locator(".try-cycle output")).to_have_text("150")


@desktop
def test_the_answer_to_a_file_is_the_answer_of_the_service(opened, life, service):
    page = drop(opened, "one.csv", csv(life, cycles=140))
    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()

    window = {
        "last_cycle": 140,
        "columns": {name: values[80:140] for name, values in life["columns"].items()},
    }
    (expected,) = service.predict(window, store=False).json()["predictions"]
    assert answer(page) == round(expected["rul"])


@desktop
def test_columns_without_a_known_name_are_matched_by_hand(opened, life):
    names = [f"x{i}" for i, _ in enumerate(life["columns"])]
    page = drop(opened, "strange.csv", csv(life, cycles=60, names=names))
    expect(page.get_by_text("fd001 needs 9 of its 17 columns")).to_be_visible()
    opened.check_accessible()
    opened.shoot("try-unmatched")
    for i, name in enumerate(list(life["columns"])[:9]):
        choice = page.get_by_label(name, exact=True)
        choice.focus()
        choice.select_option(f"x{i}")
        expect(page.get_by_text(f"{i + 1} of 17 columns of fd001")).to_be_visible()
        expect(choice).to_be_focused()

    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()


@desktop
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_text_of_a_spreadsheet_is_read_with_its_errors_and_truths(opened, life, encoding):
    lines = csv(life, cycles=90, separator=";").replace(";", "\t").splitlines()
    first = lines[1].split("\t")
    lines[1] = "\t".join([*first[:3], "#NV", "TRUE", *first[5:]])
    page = drop(opened, "Mappe.txt", "\n".join(lines), encoding=encoding)

    expect(page.get_by_text("17 of 17 columns of fd001")).to_be_visible()
    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()
    expect(page.get_by_text("read as missing")).to_have_count(0)


@desktop
def test_c_mapss_text_without_names_is_read(opened, life):
    order = [f"setting_{i}" for i in (1, 2, 3)] + [f"sensor_{i}" for i in range(1, 22)]
    lines = [
        " ".join(["7", str(i + 1), *(str(life["columns"].get(name, [0] * 99)[i]) for name in order)])
        for i in range(80)
    ]
    page = drop(opened, "test_FD001.txt", "\n".join(lines))

    expect(page.get_by_text("read as C-MAPSS text")).to_be_visible()
    expect(page.get_by_role("heading", name="Unit 7")).to_be_visible()


@desktop
def test_a_file_that_holds_no_readings_is_refused_with_its_reason(opened):
    reasons = {"": "The file is empty.", "a,b\n": "no readings", "1,2\n3,4\n": "has no column names"}
    for text, said in reasons.items():
        page = drop(opened, "bad.csv", text)

        expect(page.get_by_role("alert")).to_contain_text(said)


@desktop
def test_a_row_with_other_cells_than_the_header_is_refused_as_its_values_would_shift(opened, life):
    lines = csv(life, cycles=60).splitlines()
    lines[3] = lines[3].replace(".", ",", 1)
    page = drop(opened, "commas.csv", "\n".join(lines))

    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"Row 4 \(A, 3, .* has 20 cells, .* 19"))


@desktop
def test_no_quote_hides_the_rows_below_it(opened, life):
    lines = csv(life, cycles=60).splitlines()
    for notes, said in (
        ({3: '"worn'}, "The quote in row 4 has no end"),
        ({3: '"worn', 9: '"torn'}, "Row 4 has text after a quote"),
    ):
        text = "\n".join(f"{line},{notes.get(i, '')}" for i, line in enumerate(lines))
        page = drop(opened, "notes.csv", text)

        expect(page.get_by_role("alert")).to_contain_text(said)


@desktop
def test_an_inch_is_no_quote(opened, life):
    notes = {3: '5" pipe', 9: '6" pipe'}
    lines = csv(life, cycles=60).splitlines()
    page = drop(opened, "inch.csv", "\n".join(f"{line},{notes.get(i, '')}" for i, line in enumerate(lines)))

    expect(page.get_by_role("tabpanel")).to_contain_text('"unit": "A", "last_cycle": 60')
    expect(page.get_by_text("Cycles without a row")).to_have_count(0)


@desktop
def test_what_a_file_leaves_open_is_said(opened, life):
    text = csv(life, cycles=60, separator=";")
    for left_open, said in (
        (text.replace("sensor_3", "sensor_2"), "sensor_2 is more than once in the first row"),
        (re.sub(r"(?m)^A;5;[^;]*", "A;5;1.000", text), "such as “1.000”; read as missing"),
        (re.sub(r"(?m)^A;5;[^;]*", "A;5;0x10", text), "such as “0x10”; read as missing"),
    ):
        page = drop(opened, "open.csv", left_open)

        expect(page.get_by_role("list", name="Mismatches")).to_contain_text(said)


@desktop
def test_units_that_excel_saves_with_umlauts_stay_apart(opened, life):
    first, second = (csv(life, cycles=60, separator=";", unit=unit) for unit in "ÄÖ")
    text = "\r".join([*first.splitlines(), *second.splitlines()[1:]])
    page = drop(opened, "Mappe.csv", text, encoding="windows-1252")

    assert page.get_by_label("Unit", exact=True).locator("option").all_inner_texts() == ["Ä", "Ö"]


@desktop
def test_rows_without_order_gaps_and_repeats_are_placed_by_cycle(opened, life):
    head, *rows = csv(life, cycles=100).splitlines()
    mixed = [*rows[50:], *rows[:40], rows[60]]
    page = drop(opened, "mixed.csv", "\n".join([head, *mixed]))

    mismatches = page.get_by_role("list", name="Mismatches")
    expect(mismatches).to_contain_text("Rows that repeat a cycle: 1")
    expect(mismatches).to_contain_text("Cycles without a row: 10")
    expect(page.locator(".try-cycle output")).to_have_text("100")


def copied(page, name):
    """The text that the page copies for a language."""
    page.get_by_role("tab", name=name).click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    return page.evaluate("navigator.clipboard.readText()")


@desktop
def test_the_call_by_curl_gives_the_answer_of_the_page(opened):
    text = copied(opened.page, "curl")

    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=SECONDS)
    (prediction,) = json.loads(done.stdout)["predictions"]
    assert round(prediction["rul"]) == answer(opened.page)
    assert "trust" in prediction


@desktop
def test_the_call_by_python_gives_the_answer_of_the_page(opened):
    text = copied(opened.page, "Python")

    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{answer(opened.page)} cycles left")


@desktop
def test_the_call_by_grpc_gives_the_answer_of_the_page(opened, service):
    text = copied(opened.page, "gRPC")
    command, body = re.fullmatch(r"(grpcurl [^\n]+) <<'JSON'\n(.+)\nJSON", text, re.DOTALL).groups()

    assert command.endswith(f"{service.grpc} rul.v1.RulService/Predict")
    with grpc.insecure_channel(service.grpc) as channel:
        request = json_format.Parse(body, pb.PredictRequest())
        reply = rul_v1_pb2_grpc.RulServiceStub(channel).Predict(request, timeout=SECONDS)
    assert round(reply.predictions[0].rul) == answer(opened.page)


@desktop
def test_the_languages_are_tabs_for_the_keyboard(opened):
    page = opened.page
    page.get_by_role("tab", name="curl").focus()
    page.keyboard.press("ArrowRight")

    expect(page.get_by_role("tab", name="Python")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_contain_text("from rul_client.api import Client")
    opened.shoot("try-call")


@desktop
@expecting("ERR_FAILED")
def test_the_page_says_that_a_model_cannot_be_read(opened):
    page = opened.page
    page.route("**/v1/models/fd001", lambda route: route.abort())
    page.get_by_label("Model", exact=True).dispatch_event("change")

    expect(page.get_by_role("alert")).to_contain_text("No connection")


@desktop
def test_an_answer_that_did_not_come_can_be_asked_for_again(opened):
    page = opened.page
    page.route("**/v1/predict", lambda route: route.abort(), times=1)
    page.get_by_label(re.compile("Answer at cycle")).press("End")
    page.get_by_role("button", name="Try again").click()

    expect(page.get_by_text(re.compile("true RUL 0"))).to_be_visible()
    opened.problems.clear()


def delayed(page, pattern):
    """Hold back the next answer to this address until the returned function is called."""
    held = []
    page.route(pattern, lambda route: held.append(route), times=1)  # noqa: PLW0108 Playwright counts its arguments

    def release():
        (route,) = held
        with page.expect_response(route.request.url):
            route.continue_()

    return release


@desktop
def test_a_late_answer_does_not_replace_that_of_a_later_choice(opened, life):
    page = opened.page
    release = delayed(page, re.compile("seed=8"))
    simulated = page.get_by_role("button", name="Take a simulated unit")
    simulated.click()
    drop(opened, "later.csv", csv(life, cycles=60))
    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()
    release()
    with page.expect_response("**/v1/predict"):
        page.get_by_label(re.compile("Answer at cycle")).press("Home")

    expect(page.get_by_text("later.csv")).to_be_visible()
    expect(page.get_by_role("heading", name="Unit A")).to_be_visible()


@desktop
def test_a_simulated_unit_has_the_number_of_its_readings(opened, service):
    page = opened.page
    release = delayed(page, re.compile("seed=8"))
    simulated = page.get_by_role("button", name="Take a simulated unit")
    simulated.click()
    simulated.click()
    expect(page.get_by_text("Simulated unit 9")).to_be_visible()
    release()
    cycles = service.ask("GET", "/v1/models/fd001/simulated?seed=9").json()["cycles"]

    expect(page.locator(".try-source")).to_contain_text(f"Simulated unit 9 lives {len(cycles)} cycles")


@desktop
def test_a_slider_that_was_moved_before_another_unit_was_taken_asks_for_nothing(opened):
    page = opened.page
    page.clock.install()
    slider = page.get_by_label(re.compile("Answer at cycle"))
    slider.press("End")
    page.get_by_role("button", name="Take a simulated unit").click()
    page.clock.fast_forward(1000)

    expect(page.get_by_text("Simulated unit 8")).to_be_visible()
    expect(page.get_by_role("heading", name="Unit simulated-8")).to_be_visible()


@desktop
def test_trying_again_reads_the_chosen_model_again(opened_with_two):
    page = opened_with_two.page
    page.route("**/v1/models/fd002", lambda route: route.abort(), times=1)
    page.get_by_label("Model", exact=True).select_option("fd002")
    page.get_by_role("button", name="Try again").click()

    expect(page.get_by_label("Model", exact=True)).to_have_value("fd002")
    opened_with_two.problems.clear()


@desktop
def test_a_life_may_have_more_cycles_than_a_function_takes_arguments(opened):
    ends = """async () => {
        const { factsOf } = await import("/page/facts.js");
        const cycles = Array.from({ length: 200_000 }, (_, i) => i + 1);
        const prediction = { rul: 20, interval: { lower: 10, upper: 30 } };
        const model = { columns: [], regimes: [] };
        const life = { model, predictions: [], readings: { cycles }, prediction, at: 200_000 };
        const { first, latest } = factsOf(life);
        return [first, latest];
    }"""

    assert opened.page.evaluate(ends) == [1, 200_000]


@desktop
def test_cycles_far_apart_are_said_to_be_read_one_after_the_other(opened, life):
    lines = csv(life, cycles=60).splitlines()
    apart = [re.sub(r"^A,(\d+)", lambda found: f"A,{1000 * int(found[1])}", line) for line in lines]
    page = drop(opened, "hours.csv", "\n".join(apart))

    mismatches = page.get_by_role("list", name="Mismatches")
    expect(mismatches).to_contain_text("the model reads the rows as one cycle after the other")


@desktop
def test_names_in_any_script_are_matched_by_their_letters(opened):
    words = """async ([header, names]) => {
        const { match } = await import("/page/csv.js");
        return match(header, names).columns;
    }"""
    names = ["温度", "Öldruck_2"]

    matched = opened.page.evaluate(words, [["压力", "ÖLDRUCK 02", "oldruck2"], names])

    assert matched == {"温度": "", "Öldruck_2": "ÖLDRUCK 02"}


@desktop
@expecting("ERR_FAILED")
def test_a_library_of_the_page_that_did_not_come_can_be_asked_for_again(opened):
    page = opened.page
    page.route("**/page/vendor/uPlot.iife.min.js", lambda route: route.abort(), times=1)
    page.reload()

    expect(page.get_by_role("alert")).to_contain_text("/page/vendor/uPlot.iife.min.js")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".life")).to_be_visible()
