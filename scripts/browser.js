// A browser as the client of the HTTP data plane: serves a page as the replica, opens it in Chromium
// through the proxy, and prints what the page reports.
//
// Usage: browser.js PORT URL h2|h3 KEY_HASH PROFILE_DIR
// PORT is where the replica listens, KEY_HASH the SHA-256 of the server's public key in base64.
// Exits with 1 if a check fails or no report comes.

const { spawn } = require("child_process");
const http = require("http");
const { WebSocketServer } = require("ws");

const [port, url, protocol, keyHash, profile] = process.argv.slice(2);
const LARGE = 8 << 20;
const REPORT_WITHIN_MS = 60_000;

// Runs in the page.
async function run() {
  const report = {};
  const check = async (name, work) => {
    try { report[name] = await work(); } catch (error) { report[name] = String(error); }
  };
  const protocolOf = (path) => {
    const entries = performance.getEntriesByType("resource").filter((it) => it.name.endsWith(path));
    return entries.map((it) => it.nextHopProtocol).join();
  };
  await check("protocol", async () => {
    await (await fetch("/first")).text();
    return protocolOf("/first");
  });
  await check("concurrent", async () => {
    const all = Array.from({ length: 64 }, (_, i) => fetch(`/echo?${i}`).then((it) => it.text()));
    const answers = await Promise.all(all);
    return answers.every((it, i) => it === `/echo?${i}`);
  });
  await check("upload", async () => {
    const body = new Uint8Array(LARGE);
    for (let i = 0; i < body.length; i += 1009) body[i] = i;
    const answer = await fetch("/mirror", { method: "POST", body });
    const mirrored = new Uint8Array(await answer.arrayBuffer());
    return mirrored.length === body.length && mirrored.every((byte, i) => byte === body[i]);
  });
  await check("stream", async () => {
    const reader = (await fetch("/slow")).body.getReader();
    let parts = 0;
    while (!(await reader.read()).done) parts += 1;
    return parts > 1;
  });
  await check("events", () => new Promise((resolve, reject) => {
    const events = new EventSource("/events");
    const seen = [];
    events.onmessage = (event) => {
      seen.push(event.data);
      if (seen.length === 3) { events.close(); resolve(seen.join() === "0,1,2"); }
    };
    events.onerror = () => reject(new Error("the event stream failed"));
  }));
  await check("websocket", () => new Promise((resolve, reject) => {
    const socket = new WebSocket(`wss://${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    const sizes = [0, 125, 126, 65535, 65536, 1 << 20];
    const seen = [];
    socket.onopen = () => sizes.forEach((size) => socket.send(new Uint8Array(size)));
    socket.onmessage = (message) => {
      seen.push(message.data.byteLength);
      if (seen.length === sizes.length) socket.close(1000);
    };
    socket.onclose = (end) => resolve(end.code === 1000 && seen.join() === sizes.join());
    socket.onerror = () => reject(new Error("the WebSocket failed"));
  }));
  await check("cookie", async () => {
    await fetch("/set-cookie");
    return (await (await fetch("/cookie")).text()) === "flavour=oat";
  });
  await fetch("/report", { method: "POST", body: JSON.stringify(report) });
}

const page = `<!doctype html><link rel=icon href=data:,><script>const LARGE = ${LARGE};(${run})()</script>`;

const replica = http.createServer((request, response) => {
  const path = request.url.split("?")[0];
  const every = (times, write) => {
    let sent = 0;
    const timer = setInterval(() => {
      response.write(write(sent));
      sent += 1;
      if (sent === times) { clearInterval(timer); response.end(); }
    }, 100);
  };
  switch (path) {
    case "/": return response.setHeader("content-type", "text/html").end(page);
    case "/mirror": {
      const chunks = [];
      request.on("data", (chunk) => chunks.push(chunk));
      return request.on("end", () => response.end(Buffer.concat(chunks)));
    }
    case "/slow": return every(5, (number) => `part ${number}\n`);
    case "/events":
      response.setHeader("content-type", "text/event-stream");
      return every(3, (number) => `data: ${number}\n\n`);
    case "/set-cookie": return response.setHeader("set-cookie", "flavour=oat; Secure").end();
    case "/cookie": return response.end(request.headers.cookie);
    case "/report": {
      let body = "";
      request.on("data", (chunk) => { body += chunk; });
      request.on("end", () => { response.end(); finish(JSON.parse(body)); });
      return undefined;
    }
    default: return response.end(request.url);
  }
});
new WebSocketServer({ server: replica }).on("connection", (client) => {
  client.on("message", (data, binary) => client.send(data, { binary }));
  client.on("error", () => {});
});

let browser;
function finish(report) {
  clearTimeout(limit);
  const { protocol: seen, ...checks } = report;
  const failed = Object.entries(checks).filter(([, result]) => result !== true);
  if (seen !== protocol) failed.push(["protocol", seen]);
  console.log(`${protocol}: ${Object.keys(report).length} checks, ${failed.length} failed`);
  for (const [name, result] of failed) console.log(`  ${name}: ${result}`);
  process.exitCode = failed.length === 0 ? 0 : 1;
  replica.close();
  browser.on("exit", () => process.exit());
  browser.kill();
}
const limit = setTimeout(() => finish({ report: "none came in time" }), REPORT_WITHIN_MS);

replica.listen(Number(port), "127.0.0.1", () => {
  const flags = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", `--user-data-dir=${profile}`,
    `--ignore-certificate-errors-spki-list=${keyHash}`, "--host-resolver-rules=MAP localhost 127.0.0.1",
  ];
  if (protocol === "h3") flags.push(`--origin-to-force-quic-on=${new URL(url).host}`);
  browser = spawn("chromium", [...flags, url], { stdio: "ignore" });
  browser.on("error", (error) => finish({ browser: error.message }));
});
