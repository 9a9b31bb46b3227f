import { Badge } from "@chakra-ui/react";
import { LuHistory } from "react-icons/lu";
import { AppLink } from "src/components";
import { airflowRunPath } from "src/routes";
import type { ArtifactEntry } from "src/tabs/run/stages";

/** That an artifact was taken from an earlier run, and from which. */
export function CachedBadge({ artifact }: { artifact: ArtifactEntry }) {
  const maker = artifact.maker;
  const badge = (
    <Badge size="sm" variant="outline" colorPalette="gray">
      <LuHistory aria-hidden /> cached
    </Badge>
  );
  return maker ? (
    <AppLink to={airflowRunPath(maker.dag_id, maker.run_id)} title={`made by the run ${maker.run_id}`}>
      {badge}
    </AppLink>
  ) : (
    badge
  );
}
