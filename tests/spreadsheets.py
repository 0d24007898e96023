"""The smallest spreadsheet that Excel opens: one sheet or several of texts, numbers and dates."""

import zipfile
from datetime import date
from xml.sax.saxutils import escape

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
PARTS = {
    "[Content_Types].xml": (
        f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        "</Types>"
    ),
    "_rels/.rels": (
        f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="r" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
    ),
    "xl/styles.xml": (
        f'<styleSheet xmlns="{MAIN}"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
        "</styleSheet>"
    ),
}


def write_xlsx(path, rows, *, sheets=("Sheet1",), stray=None):
    """Write rows to the first of these sheets; the others are empty. None is an empty cell.

    `stray` is the place of one additional cell.
    """
    lines = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
    if stray:
        row = stray.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        lines += f'<row r="{row}"><c r="{stray}"><v>1</v></c></row>'
    numbers = range(1, len(sheets) + 1)
    listed = "".join(
        f'<sheet name="{name}" sheetId="{i}" r:id="s{i}"/>' for i, name in zip(numbers, sheets, strict=True)
    )
    related = "".join(
        f'<Relationship Id="s{i}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{i}.xml"/>'
        for i in numbers
    )
    with zipfile.ZipFile(path, "w") as file:
        for name, text in PARTS.items():
            file.writestr(name, text)
        file.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>',
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships">{related}'
            f'<Relationship Id="y" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        )
        for i in numbers:
            held = lines if i == 1 else ""
            file.writestr(
                f"xl/worksheets/sheet{i}.xml",
                f'<worksheet xmlns="{MAIN}"><sheetData>{held}</sheetData></worksheet>',
            )
    return path


def _cell(value):
    if value is None:
        return "<c/>"
    if isinstance(value, date):
        return f'<c s="1"><v>{(value - date(1899, 12, 30)).days}</v></c>'
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f"<c><v>{value}</v></c>"
