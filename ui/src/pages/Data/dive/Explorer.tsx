import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingBox } from "src/components/Loading";
import { useQuery } from "src/hooks/useQueryState";
import { Controls } from "src/pages/Data/dive/Controls";
import { defaultsOf, rolesOf } from "src/pages/Data/dive/features";
import { Picture } from "src/pages/Data/dive/Picture";
import { readPlacement } from "src/pages/Data/dive/settings";
import { useRows } from "src/pages/Data/dive/useRows";
import { useWanted } from "src/pages/Data/dive/useWanted";
import type { ArtifactRef } from "src/routes";

interface Props {
  artifact: ArtifactRef;
  split: string;
  content: Schemas["SplitRows"];
  properties: Record<string, unknown>;
}

/** The rows of a split: the plot or the table, what is set above it, and what they say beside it. */
export function Explorer({ artifact, split, content, properties }: Props) {
  const [query] = useQuery();
  const roles = useMemo(() => rolesOf(properties, content.columns), [properties, content]);
  const features = useMemo(() => content.columns.filter(({ role }) => role !== null), [content]);
  const names = useMemo(() => content.columns.map(({ name }) => name), [content]);
  const defaults = useMemo(() => defaultsOf(content.columns, roles), [content, roles]);
  const placement = useMemo(() => readPlacement(query, defaults), [query, defaults]);
  const source = useMemo(
    () => ({ ref: artifact, split, time: roles.time, label: roles.label, classes: roles.classes }),
    [artifact, split, roles],
  );
  const wanted = useWanted(features, placement, query);
  const rows = useRows(source, names, wanted);
  const { columns, rows: size } = rows;
  if (size === 0 && rows.error) {
    return <ErrorAlert error={rows.error} retry={rows.retry} />;
  }
  return (
    <>
      <Controls features={features} columns={columns} placement={placement} />
      {rows.error !== null && <ErrorAlert error={rows.error} retry={rows.retry} />}
      {size === 0 ? <LoadingBox height="60vh" /> : <Picture placement={placement} features={features} rows={rows} />}
    </>
  );
}
