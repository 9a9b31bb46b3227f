import { useLocation, useSearchParams } from "react-router-dom";
import { AppLink, Empty } from "src/components";
import { overviewPath, pipelinesPath } from "src/routes";

/** An address below the pages' own that is none of them: says so, and where to go. */
export function NotFound() {
  const { pathname } = useLocation();
  const [query] = useSearchParams();
  const dagId = query.get("dag");
  return (
    <Empty title="Page not found">
      There is no page {pathname}. Go to{" "}
      {dagId && (
        <>
          <AppLink to={overviewPath(dagId)}>the overview of {dagId}</AppLink> or to{" "}
        </>
      )}
      <AppLink to={pipelinesPath()}>all pipelines</AppLink>.
    </Empty>
  );
}
