import { Box, Drawer, HStack, Stack, Text } from "@chakra-ui/react";
import {
  api,
  Choice,
  CodeBlock,
  client,
  formatBytes,
  formatCount,
  formatPercent,
  LinesAlert,
  Owners,
  PlainTable,
  plural,
  QueryView,
  type Schemas,
  SideDrawer,
  StateBadge,
  TabPanels,
  Time,
  usePipelines,
} from "airflow-hops";
import { useState } from "react";
import { ComparedFeatures } from "src/extensions/sharing/ComparedFeatures";
import { featuresOf, usePipelineFeatures } from "src/extensions/sharing/features";
import { BADGES, formatRate, fullName, type SharedDataset, shareDone, stateOf } from "src/extensions/sharing/words";

const NOTHING = "";
const PIPELINE = "pipeline:";

/** One data set: card, transfer, statistics next to ours, sample rows, schema, and how to use it. */
export function DatasetDrawer({ dataset, onClose }: { dataset: SharedDataset; onClose: () => void }) {
  const { organisation, name, version } = dataset;
  const preview = api.useQuery("get", "/api/sharing/{organisation}/{name}/{version}", {
    params: { path: { organisation, name, version } },
  });
  return (
    <SideDrawer header={<Header dataset={dataset} />} onClose={onClose}>
      <Stack gap={4}>
        <Transfer dataset={dataset} />
        <QueryView query={preview}>{(data) => <Preview dataset={dataset} preview={data} />}</QueryView>
      </Stack>
    </SideDrawer>
  );
}

function Header({ dataset }: { dataset: SharedDataset }) {
  const state = stateOf(dataset);
  return (
    <Stack gap={1}>
      <HStack>
        <Drawer.Title>{fullName(dataset)}</Drawer.Title>
        <StateBadge state={BADGES[state] ?? "none"}>{state}</StateBadge>
      </HStack>
      <Text fontSize="sm" color="fg.muted">
        {dataset.licence} · {plural(dataset.rows, "row")} · {plural(dataset.files, "file")},{" "}
        {formatBytes(dataset.size_bytes)} · <Time at={dataset.created_at} />
      </Text>
    </Stack>
  );
}

function Transfer({ dataset }: { dataset: SharedDataset }) {
  const { transfer } = dataset;
  if (transfer === null) {
    return null;
  }
  return (
    <Stack gap={2}>
      <LinesAlert status="error" lines={[...(transfer.error ? [transfer.error] : []), ...transfer.dropped]} />
      {transfer.peers.length > 0 && (
        <PlainTable
          label="Peers"
          rows={transfer.peers}
          rowKey={({ address }) => address}
          columns={[
            { label: "Peer", cell: ({ organisation }) => organisation },
            { label: "Address", cell: ({ address }) => address },
            { label: "It has", end: true, cell: ({ progress }) => formatPercent(progress, 2) },
            { label: "From it", end: true, cell: ({ down_bytes_s }) => formatRate(down_bytes_s) },
            { label: "To it", end: true, cell: ({ up_bytes_s }) => formatRate(up_bytes_s) },
          ]}
        />
      )}
      <Text fontSize="sm" color="fg.muted">
        {formatPercent(shareDone(dataset), 3)} here, {formatBytes(transfer.uploaded_bytes)} given to others
      </Text>
    </Stack>
  );
}

function Preview({ dataset, preview }: { dataset: SharedDataset; preview: Schemas["DatasetPreview"] }) {
  const { owned, tables } = preview;
  const [tab, setTab] = useState("statistics");
  const owner = owned?.owners[0];
  const command = `airflow hops datasets show ${fullName(dataset)}       # schema, statistics, sample rows
airflow hops datasets download ${fullName(dataset)}   # into the store
IngestOperator(task_id="ingest", sources={"${dataset.name}": "dataset://${fullName(dataset)}"})`;
  return (
    <Stack gap={4}>
      {owned && owner && (
        <Owners
          name={owned.name}
          right={`publish as ${owned.name}`}
          owned={owned}
          mayChange={owned.may_change}
          onChange={(owners, reason) =>
            client.POST("/api/dags/{dag_id}/published/{dataset}/owners", {
              params: { path: { dag_id: owner, dataset: owned.name } },
              body: { owners, reason },
            })
          }
        />
      )}
      <Text whiteSpace="pre-wrap">{preview.card ?? dataset.description}</Text>
      <TabPanels
        opened={tab}
        onOpen={setTab}
        tabs={[
          { name: "statistics", label: "Statistics", content: <Statistics dataset={dataset} /> },
          {
            name: "rows",
            label: "Rows",
            content: tables.length > 0 ? tables.map((table) => <Sample key={table.name} table={table} />) : notYet,
          },
          {
            name: "schema",
            label: "Schema",
            content: tables.length > 0 ? tables.map((table) => <SchemaText key={table.name} table={table} />) : notYet,
          },
          { name: "use", label: "Use", content: <CodeBlock label="the commands" code={command} /> },
        ]}
      />
    </Stack>
  );
}

const notYet = (
  <Text color="fg.muted" fontSize="sm">
    The preview was not fetched yet: airflow hops datasets show fetches it.
  </Text>
);

function SchemaText({ table }: { table: Schemas["DatasetTable"] }) {
  return (
    <Box mb={4}>
      <Text fontWeight="medium" fontSize="sm">
        {table.name}
      </Text>
      <CodeBlock label={`schema of ${table.name}`} code={table.schema_text} maxHeight="50vh" />
    </Box>
  );
}

/** Its statistics, next to those of a data set of ours or of a pipeline's newest statistics. */
function Statistics({ dataset }: { dataset: SharedDataset }) {
  const [chosen, setChosen] = useState(NOTHING);
  const pipelines = usePipelines().data?.entries ?? [];
  const all = api.useQuery("get", "/api/sharing", { params: { query: { search: "" } } }).data?.datasets ?? [];
  const others = all.filter((each) => fullName(each) !== fullName(dataset));
  const values = [
    { value: NOTHING, label: "nothing" },
    ...others.map((each) => ({ value: fullName(each) })),
    ...pipelines.map(({ dag_id: dagId }) => ({ value: PIPELINE + dagId, label: `${dagId}: newest statistics` })),
  ];
  const dagId = chosen.startsWith(PIPELINE) ? chosen.slice(PIPELINE.length) : null;
  const ofPipeline = usePipelineFeatures(dagId);
  const other = others.find((each) => fullName(each) === chosen);
  return (
    <Stack gap={3} mt={2}>
      <Choice label="Compare with" value={chosen} values={values} onChange={setChosen} />
      <LinesAlert lines={[dagId && ofPipeline.problem]} />
      <ComparedFeatures
        theirs={featuresOf(dataset)}
        ours={other ? featuresOf(other) : ofPipeline.features}
        label={chosen.replace(PIPELINE, "")}
      />
    </Stack>
  );
}

function Sample({ table }: { table: Schemas["DatasetTable"] }) {
  return (
    <Box mb={4}>
      <Text fontWeight="medium" fontSize="sm">
        {table.name}: first {formatCount(table.rows.length)} rows
      </Text>
      <PlainTable
        label={`Rows of ${table.name}`}
        whiteSpace="nowrap"
        rows={table.rows.map((row, place) => ({ row, place }))}
        rowKey={({ place }) => place}
        columns={table.columns.map((column, at) => ({
          label: (
            <>
              {column}{" "}
              <Text as="span" fontWeight="normal">
                {table.types[column]}
              </Text>
            </>
          ),
          cell: ({ row }: { row: unknown[]; place: number }) => (row[at] === null ? "" : String(row[at])),
        }))}
      />
    </Box>
  );
}
