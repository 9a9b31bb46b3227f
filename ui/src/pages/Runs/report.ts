import { apiAddress } from "src/api/client";

/** Runs that a report compares at most. */
export const REPORTED = 8;

/** Where a report of runs beside each other is downloaded. */
export const runsReport = (dagId: string, runIds: readonly string[]): string =>
  `${apiAddress("dags", dagId, "reports", "runs")}?${new URLSearchParams(runIds.map((id) => ["run", id]))}`;
