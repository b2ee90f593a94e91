import { dsn, main, payload, peer, start } from "./peer.mjs";

const PgBoss = peer("pg-boss");
const BATCH = 10000;
const PRODUCER = { supervise: false, schedule: false, migrate: false };

async function started(options) {
  const boss = new PgBoss({ connectionString: dsn, ...options });
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

await main({
  async setup() {
    const boss = await started({});
    await boss.createQueue("q");
    await boss.stop();
  },
  async producer() {
    const boss = await started(PRODUCER);
    return {
      async bulk(numbers) {
        for (let k = 0; k < numbers.length; k += BATCH)
          await boss.insert(numbers.slice(k, k + BATCH).map((n) => ({ name: "q", data: payload(n) })));
      },
      one: (n) => boss.send("q", payload(n)),
    };
  },
  async work() {
    const boss = await started({ max: 10 });
    for (let k = 0; k < 4; k++)
      await boss.work("q", { batchSize: 5000, pollingIntervalSeconds: 0.5 }, async (jobs) => {
        for (const job of jobs) start(job.data.n);
      });
    process.on("SIGTERM", () => process.exit(0));
  },
});
