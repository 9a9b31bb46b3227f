import { formatBytes, type Schemas } from "airflow-hops";

export type SharedDataset = Schemas["SharedDataset"];

/** The full name of a version, as commands and sources write it. */
export const fullName = ({ organisation, name, version }: Pick<SharedDataset, "organisation" | "name" | "version">) =>
  `${organisation}/${name}@${version}`;

/** A rate, or an empty text for none. */
export const formatRate = (bytesPerSecond: number | null | undefined): string =>
  bytesPerSecond ? `${formatBytes(bytesPerSecond)}/s` : "";

/** What a data set is to us: shared by us, fetched, being fetched, or offered by others. */
export function stateOf({ is_own: isOwn, is_fetched: isFetched, transfer }: SharedDataset): string {
  if (isOwn) {
    return "shared";
  }
  if (transfer && (transfer.state !== "fetched" || isFetched)) {
    return transfer.state;
  }
  return isFetched ? "fetched" : "offered";
}

/** Airflow's state whose colour and icon stand for it. */
export const BADGES: Record<string, string> = {
  shared: "success",
  fetched: "success",
  seeding: "success",
  failed: "failed",
  downloading: "running",
  storing: "running",
  waiting: "queued",
  previewed: "scheduled",
  offered: "none",
};

/** The share of the bytes that are here, 0 to 1. */
export const shareDone = ({ size_bytes: size, transfer }: SharedDataset): number =>
  transfer ? (size > 0 ? transfer.done_bytes / size : 1) : 0;
