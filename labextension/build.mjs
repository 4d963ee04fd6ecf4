// Bundles the job view into one ES module: what the widget ships to a page, and what the JupyterLab extension imports.
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const WIDGET = 'kfnb/views/static/jobview.js';
// over what tsc made of the same module
const IMPORTED = 'labextension/lib/jobview/index.js';

// Every executed notebook that shows a widget keeps the module.
const LIMIT = 150_000;

const { outputFiles } = await build({
  entryPoints: ['labextension/src/jobview/index.ts'],
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  charset: 'utf8',
  loader: { '.css': 'text' },
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  banner: { js: await licences() },
  outfile: WIDGET,
  write: false
});
const bundle = outputFiles[0].contents;
const gzipped = gzipSync(bundle, { level: 9 }).length;
if (gzipped > LIMIT) {
  throw new Error(`The job view is ${gzipped} bytes gzipped, and ${LIMIT} are allowed.`);
}
for (const file of [WIDGET, IMPORTED]) {
  await mkdir(dirname(file), { recursive: true });
  await writeFile(file, bundle);
}
console.log(`${WIDGET}: ${bundle.length} bytes, ${gzipped} gzipped`);

async function licences() {
  const parts = await Promise.all(
    ['preact', 'uplot', 'anser'].map(async name => {
      const { version, license } = JSON.parse(await readFile(`node_modules/${name}/package.json`, 'utf8'));
      return `${name} ${version} (${license})`;
    })
  );
  return `/* kfnb (Apache-2.0), with ${parts.join(', ')} */`;
}
