import { Outlet, useOutletContext, useSearchParams } from "react-router-dom";
import { usePipelines } from "src/api/pipelines";
import { AppLink, Empty, ErrorBoundary, QueryView } from "src/components";
import { HowToStart } from "src/shell/HowToStart";

/** The pages of one pipeline: that in the address, or the only one that there is. */
export function OfPipeline() {
  const [query] = useSearchParams();
  const named = query.get("dag");
  return named ? <Page dagId={named} /> : <Choose />;
}

function Page({ dagId }: { dagId: string }) {
  return (
    <ErrorBoundary resetKey={dagId}>
      <Outlet key={dagId} context={dagId} />
    </ErrorBoundary>
  );
}

function Choose() {
  const pipelines = usePipelines();
  const [query] = useSearchParams();
  const withDag = (dagId: string) => {
    const all = new URLSearchParams(query);
    all.set("dag", dagId);
    return `?${all}`;
  };
  return (
    <QueryView query={pipelines}>
      {({ entries: all }) => {
        const [first, ...others] = all;
        if (first === undefined) {
          return <HowToStart />;
        }
        if (others.length === 0) {
          return <Page dagId={first.dag_id} />;
        }
        return (
          <Empty title="Which pipeline?">
            {all.map(({ dag_id }) => (
              <div key={dag_id}>
                <AppLink to={withDag(dag_id)}>{dag_id}</AppLink>
              </div>
            ))}
          </Empty>
        );
      }}
    </QueryView>
  );
}

/** The id of the DAG whose page this is. */
export function useDagId(): string {
  return useOutletContext<string>();
}
