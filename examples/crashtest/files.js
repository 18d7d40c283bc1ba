// Node: twenty pages of a file get the same number, then one flush: by calls that wait (`sync`), or by Node's threads
// (`async`). `setup|run|check DIR sync|async`
const fs = require("fs");

const PAGE = 4096, KEYS = 20;
const [what, dir, how] = process.argv.slice(2);
const path = dir + "/pages";
const page = (n) => Buffer.from(String(n).padEnd(PAGE));
const first = Number(process.env.UNTORN_FIRST ?? 1), rounds = Number(process.env.UNTORN_ROUNDS ?? 60);
// A stream would write later.
const acknowledge = (n) => fs.writeSync(1, n + "\n");

async function run() {
    if (how === "sync") {
        const file = fs.openSync(path, "r+");
        for (let n = first; n < first + rounds; n++) {
            for (let key = 0; key < KEYS; key++) fs.writeSync(file, page(n), 0, PAGE, key * PAGE);
            fs.fsyncSync(file);
            acknowledge(n);
        }
        return;
    }
    const file = await fs.promises.open(path, "r+");
    for (let n = first; n < first + rounds; n++) {
        await Promise.all([...Array(KEYS).keys()].map((key) => file.write(page(n), 0, PAGE, key * PAGE)));
        await file.sync();
        acknowledge(n);
    }
    await file.close();
}

if (what === "setup") fs.writeFileSync(path, Buffer.concat(Array(KEYS).fill(page(0))));
if (what === "run") run();
if (what === "check") {
    const text = fs.readFileSync(path).toString();
    const found = new Set([...Array(KEYS).keys()].map((key) => Number(text.slice(key * PAGE, (key + 1) * PAGE))));
    const least = Number(fs.readFileSync(process.env.UNTORN_ACKED).toString().split("\n").filter(Boolean).pop() ?? 0);
    if (text.length !== KEYS * PAGE || found.size !== 1 || [...found][0] < least) {
        console.log(`${least} was acknowledged, ${[...found]} was found`);
        process.exit(1);
    }
}
