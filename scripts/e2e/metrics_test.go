// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/scripts/e2e/cluster"
)

// metricsTimeout is how long the file may take to show what has happened: a few ticks.
const metricsTimeout = 10 * time.Second

// metricsFile is the agent's metrics file as the test sees it.
func metricsFile() string { return env.cluster.Node.Path(filepath.Join(textfileDir, "vgpud.prom")) }

// series is one line of a metrics page.
type series struct {
	name   string
	labels map[string]string
	value  float64
}

// readSeries returns the page's lines with this name whose labels include the given ones. The page's grammar is
// promtool's to judge; this reads what client libraries write.
func readSeries(t *testing.T, page, name string, labels map[string]string) (found []series) {
	t.Helper()
	for _, line := range strings.Split(page, "\n") {
		head, valueText, ok := strings.Cut(line, "} ")
		if !ok {
			head, valueText, _ = strings.Cut(line, " ")
		}
		lineName, labelText, _ := strings.Cut(head, "{")
		if lineName != name {
			continue
		}
		value, err := strconv.ParseFloat(valueText, 64)
		if err != nil {
			t.Fatalf("metrics line %q: %v", line, err)
		}
		s := series{lineName, map[string]string{}, value}
		for _, pair := range strings.Split(labelText, ",") {
			key, quoted, _ := strings.Cut(pair, "=")
			s.labels[key] = strings.Trim(quoted, `"`)
		}
		if s.has(labels) {
			found = append(found, s)
		}
	}
	return found
}

func (s series) has(labels map[string]string) bool {
	for key, value := range labels {
		if s.labels[key] != value {
			return false
		}
	}
	return true
}

// ofPod are the labels by which a pod's series are found.
func ofPod(name string) map[string]string {
	return map[string]string{"namespace": cluster.Namespace, "pod": name, "container": containerName}
}

// readMetricsFile is the metrics file, which an agent that has just been started writes in a moment.
func readMetricsFile(t *testing.T) string {
	t.Helper()
	var page []byte
	eventually(t, metricsTimeout, "the agent writes its metrics", func() (bool, string) {
		var err error
		page, err = os.ReadFile(metricsFile())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
	return string(page)
}

// awaitMetric waits until there is exactly one series of the name and labels, and it has the value.
func awaitMetric(t *testing.T, name string, labels map[string]string, want float64) {
	t.Helper()
	eventually(t, metricsTimeout, fmt.Sprintf("%s%v is %v", name, labels, want), func() (bool, string) {
		found := readSeries(t, readMetricsFile(t), name, labels)
		return len(found) == 1 && found[0].value == want, fmt.Sprint(found)
	})
}

// Each pod's series carry its own names and its own figures, never the other's.
func TestMetricsNameEachPod(t *testing.T) {
	besideOthers(t)
	held := map[string]uint64{"metrics-a": 1000001, "metrics-b": 2000002}
	for name, amount := range held {
		create(t, newPod(name, 1, clientPath, "hold", strconv.FormatUint(amount, 10)))
	}
	uuids := map[string]string{}
	for name, amount := range held {
		awaitLog(t, name, "held")
		awaitMetric(t, "vgpud_slice_memory_limit_bytes", ofPod(name), float64(env.gpus.sliceBytes()))
		awaitMetric(t, "vgpud_slice_memory_used_bytes", ofPod(name), float64(amount))
		awaitMetric(t, "vgpud_slice_memory_refusals_total", ofPod(name), 0)
		uuids[name] = mustFind(t, inPod(t, name, clientPath, "info"), "cuda")["uuid"]
		if got := readSeries(t, readMetricsFile(t), "vgpud_slice_memory_limit_bytes", ofPod(name)); len(got) != 1 ||
			got[0].labels["gpu_uuid"] != uuids[name] {
			t.Errorf("pod %s runs on %s, its metrics say %v", name, uuids[name], got)
		}
	}
	inPod(t, "metrics-b", clientPath, "fill") // is refused at the end, many times
	eventually(t, metricsTimeout, "refusals are counted", func() (bool, string) {
		found := readSeries(t, readMetricsFile(t), "vgpud_slice_memory_refusals_total", ofPod("metrics-b"))
		return len(found) == 1 && found[0].value > 0, fmt.Sprint(found)
	})
	awaitMetric(t, "vgpud_slice_memory_refusals_total", ofPod("metrics-a"), 0)
	awaitMetric(t, "vgpud_slice_memory_used_bytes", ofPod("metrics-b"), float64(held["metrics-b"]))
}

func TestMetricsFileIsWellFormed(t *testing.T) {
	besideOthers(t)
	promtool := requireTool(t, "promtool")
	create(t, newPod("metrics-lint", 1, clientPath, "hold", "1000000"))
	awaitLog(t, "metrics-lint", "held")
	awaitMetric(t, "vgpud_slice_memory_used_bytes", ofPod("metrics-lint"), 1000000)
	st, err := os.Stat(metricsFile())
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o644 {
		t.Errorf("metrics file has mode %o, want 644", st.Mode().Perm())
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader([]byte(readMetricsFile(t)))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// The real node-exporter serves the file's series and has nothing to complain about.
func TestNodeExporterServesTheMetrics(t *testing.T) {
	besideOthers(t)
	exporter := requireTool(t, "prometheus-node-exporter")
	p := env.cluster.Node.NewProcess("node-exporter", exporter, "--collector.disable-defaults",
		"--collector.textfile", "--collector.textfile.directory="+textfileDir, "--web.listen-address=127.0.0.1:9100")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(15, stopTimeout); err != nil {
			t.Error(err)
		}
	})
	create(t, newPod("exported", 1, clientPath, "hold", "3000003"))
	awaitLog(t, "exported", "held")
	eventually(t, metricsTimeout, "node-exporter serves the pod's use", func() (bool, string) {
		page, err := env.cluster.Get(t.Context(), "http://127.0.0.1:9100/metrics")
		if err != nil {
			return false, err.Error()
		}
		if errors := readSeries(t, page, "node_textfile_scrape_error", nil); len(errors) != 1 || errors[0].value != 0 {
			t.Fatalf("node-exporter could not read the file: %v", errors)
		}
		used := readSeries(t, page, "vgpud_slice_memory_used_bytes", ofPod("exported"))
		return len(used) == 1 && used[0].value == 3000003, fmt.Sprint(used)
	})
}
