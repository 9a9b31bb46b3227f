import { api } from "src/api/client";
import { CodeBlock } from "src/components/CodeBlock";
import { QueryView } from "src/components/QueryView";

/** A schema as protobuf text. */
export function SchemaText({ dagId, name, version }: { dagId: string; name: string; version: number | null }) {
  const text = api.useQuery("get", "/api/dags/{dag_id}/schemas/{name}/text", {
    params: { path: { dag_id: dagId, name }, query: version === null ? {} : { version } },
    parseAs: "text",
  });
  return (
    <QueryView query={text}>
      {(shown) => <CodeBlock label="the schema" code={String(shown)} maxHeight="65vh" />}
    </QueryView>
  );
}
