import { Heading, HStack, Stack, Text } from "@chakra-ui/react";
import {
  AppLink,
  api,
  type Column,
  client,
  column,
  DataTable,
  Empty,
  FilterBar,
  formatDuration,
  formatList,
  LoadingBox,
  lineagePath,
  modelsPath,
  numberColumn,
  Owners,
  plural,
  QueryView,
  type Schemas,
  SearchInput,
  Time,
  useQueryParam,
} from "airflow-hops";
import { useMemo } from "react";

type Store = Schemas["FeatureStorePage"];
type View = Schemas["FeatureViewEntry"];

/** The feature store of a pipeline: its views, how fresh they are, and which models use them. */
export function FeaturesPage({ dagId }: { dagId: string }) {
  const query = api.useQuery("get", "/api/dags/{dag_id}/features", { params: { path: { dag_id: dagId } } });
  return (
    <QueryView query={query} loading={<LoadingBox height="320px" />}>
      {(store) =>
        store.project === null ? (
          <Empty title="This pipeline uses no feature store">
            ApplyFeaturesOperator registers the definitions of a Feast repository; its views are then listed here.
          </Empty>
        ) : (
          <Views dagId={dagId} store={store} />
        )
      }
    </QueryView>
  );
}

const columnsOf = (dagId: string): Column<View>[] => [
  { key: "name", label: "View", fixed: true, value: ({ name }) => name },
  column("features", "Features", {
    width: 240,
    render: ({ features }) =>
      Object.entries(features)
        .map(([name, type]) => `${name} ${type}`)
        .join(", "),
    value: ({ features }) => Object.keys(features).length,
  }),
  { key: "keys", label: "Keys", render: ({ join_keys }) => join_keys.join(", ") },
  { key: "owner", label: "Owner", render: ({ owner }) => owner || "–", value: ({ owner }) => owner },
  column("loaded", "Loaded until", {
    help: "End of the newest window in the online store",
    render: ({ loaded_until: at, online }) => (at ? <Time at={at} /> : online ? "never" : "not online"),
    value: ({ loaded_until }) => loaded_until,
  }),
  numberColumn("ttl", "Time to live", ({ ttl_s }) => ttl_s, {
    format: (seconds) => (seconds === null ? "unlimited" : formatDuration(seconds)),
  }),
  column("models", "Models", {
    render: ({ used_by }) =>
      used_by.length === 0
        ? "–"
        : used_by.map(({ model, version, features }) => (
            <AppLink
              key={`${model} ${version}`}
              to={modelsPath(dagId, { model, version })}
              title={formatList(features)}
            >
              {model} {version}
            </AppLink>
          )),
    value: ({ used_by }) => used_by.length,
  }),
  { key: "source", label: "Source", optional: true, value: ({ source }) => source },
  { key: "description", label: "Description", optional: true, render: ({ description }) => description },
  column("tags", "Tags", {
    optional: true,
    render: ({ tags }) =>
      Object.entries(tags)
        .map(([name, value]) => `${name}=${value}`)
        .join(", "),
  }),
];

function Views({ dagId, store }: { dagId: string; store: Store }) {
  const [search] = useQueryParam("search");
  const columns = useMemo(() => columnsOf(dagId), [dagId]);
  const rows = useMemo(() => {
    const wanted = search.toLowerCase();
    return store.views.filter((view) =>
      [view.name, view.owner, view.description, ...Object.keys(view.features), ...Object.values(view.tags)].some(
        (text) => text.toLowerCase().includes(wanted),
      ),
    );
  }, [store.views, search]);
  return (
    <Stack as="section" gap={3} aria-labelledby="views">
      <HStack gap={4} wrap="wrap">
        <Heading size="md" as="h2" id="views">
          Feature views
        </Heading>
        {store.definitions && (
          <AppLink to={lineagePath(dagId, { artifact: store.definitions })}>definitions of {store.project}</AppLink>
        )}
        {store.owned && (
          <Owners
            name={`the feature definitions of ${store.project}`}
            right="change these definitions"
            owned={store.owned}
            mayChange={store.owned.may_change && store.owned.owners.includes(dagId)}
            onChange={(owners, reason) =>
              client.POST("/api/dags/{dag_id}/features/owners", {
                params: { path: { dag_id: dagId } },
                body: { owners, reason },
              })
            }
          />
        )}
      </HStack>
      <DataTable
        rows={rows}
        columns={columns}
        rowKey={({ name }) => name}
        label="Feature views"
        initialSort={{ column: "name", descending: false }}
        toolbar={
          <FilterBar summary={plural(rows.length, "view")}>
            <SearchInput placeholder="Search views, features and owners" />
          </FilterBar>
        }
      />
      {store.problem && <Text fontSize="sm">The views are not shown: {store.problem}</Text>}
      {Object.entries(store.services).map(([name, references]) => (
        <Text key={name} fontSize="sm" color="fg.muted">
          Feature service {name}: {references.join(", ")}
        </Text>
      ))}
    </Stack>
  );
}
