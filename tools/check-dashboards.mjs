#!/usr/bin/env node
// Holds the dashboards against Grafana's own types (npm @grafana/schema, of the release that
// docker-compose.yml runs). Needs node 20 and npm; about ten seconds, less the second time.
//
//   tools/check-dashboards.mjs
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const folder = join(root, "observability/grafana/dashboards");
const release = readFileSync(join(root, "docker-compose.yml"), "utf8").match(/grafana\/grafana:([\d.]+)/)[1];
const work = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), `rulserve-grafana-${release}`);
const packages = [`@grafana/schema@${release}`, "ajv@8.17.1", "ts-json-schema-generator@2.3.0", "typescript@5.8.3"];

// The types of a panel's options and of its field configuration, by the panel's own type.
const panelTypes = {
  bargauge: ["bargauge/panelcfg/x/BarGaugePanelCfg_types.gen.d.ts", "Options"],
  heatmap: ["heatmap/panelcfg/x/HeatmapPanelCfg_types.gen.d.ts", "Options", "FieldConfig"],
  stat: ["stat/panelcfg/x/StatPanelCfg_types.gen.d.ts", "Options"],
  table: ["table/panelcfg/x/TablePanelCfg_types.gen.d.ts", "Options", "FieldConfig"],
  timeseries: ["timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts", "Options", "FieldConfig"],
};

if (!existsSync(join(work, "node_modules", "ajv"))) {
  mkdirSync(work, { recursive: true });
  writeFileSync(join(work, "package.json"), '{"private": true}');
  execFileSync("npm", ["install", "--no-audit", "--no-fund", "--silent", ...packages], { cwd: work, stdio: "inherit" });
}
const require = createRequire(join(work, "package.json"));
const Ajv = require("ajv").default;
const { createGenerator } = await import(require.resolve("ts-json-schema-generator"));

const compiled = new Map();
function checker(file, type) {
  const key = `${file} ${type}`;
  if (!compiled.has(key)) {
    const path = join(work, "node_modules/@grafana/schema/dist/types/raw", file);
    const schema = createGenerator({ path, type, skipTypeCheck: true }).createSchema(type);
    compiled.set(key, new Ajv({ allErrors: true, strict: false }).compile(schema));
  }
  return compiled.get(key);
}

let wrong = 0;
function check(what, value, file, type) {
  const accepts = checker(file, type);
  if (!accepts(value)) {
    for (const error of accepts.errors) {
      wrong += 1;
      console.error(`${what}${error.instancePath}: ${error.message} ${JSON.stringify(error.params)}`);
    }
  }
}

const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
for (const name of names) {
  const dashboard = JSON.parse(readFileSync(join(folder, name), "utf8"));
  check(name, dashboard, "dashboard/x/dashboard_types.gen.d.ts", "Dashboard");
  const panels = dashboard.panels.flatMap((panel) => (panel.type === "row" ? panel.panels : [panel]));
  for (const panel of panels) {
    const what = `${name}: ${panel.title}`;
    if (!(panel.type in panelTypes)) {
      wrong += 1;
      console.error(`${what}: add the types of ${panel.type} to tools/check-dashboards.mjs`);
      continue;
    }
    const [file, options, field] = panelTypes[panel.type];
    check(`${what}, options`, panel.options, `composable/${file}`, options);
    if (field) check(`${what}, field`, panel.fieldConfig.defaults.custom ?? {}, `composable/${file}`, field);
  }
}
console.log(`${names.length} dashboard(s) against Grafana ${release}: ${wrong} error(s)`);
process.exit(wrong ? 1 : 0);
