import { dsn, main, payload, peer, start } from "./peer.mjs";

const { run, makeWorkerUtils, Logger } = peer("graphile-worker");
const logger = new Logger(() => () => {});
const BATCH = 20000;

await main({
  async setup() {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    await utils.migrate();
    await utils.release();
  },
  async producer() {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    return {
      async bulk(numbers) {
        for (let k = 0; k < numbers.length; k += BATCH)
          await utils.addJobs(
            numbers.slice(k, k + BATCH).map((n) => ({ identifier: "noop", payload: payload(n) })),
          );
      },
      one: (n) => utils.addJob("noop", payload(n)),
    };
  },
  async work() {
    const runner = await run({
      preset: {
        worker: {
          connectionString: dsn,
          concurrentJobs: 24,
          maxPoolSize: 25,
          logger,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
      taskList: { noop: async (job) => start(job.n) },
    });
    await runner.promise;
  },
});
