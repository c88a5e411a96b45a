// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A CPU profile of the agent, over its control socket, and what is kept of it.

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// kept is how many functions are kept.
const kept = 20

// spot is a function with its part of all samples, in percent.
type spot struct {
	Flat     float64 `json:"flat_percent"`
	Cum      float64 `json:"cum_percent"`
	Function string  `json:"function"`
}

// profile takes a CPU profile of so long, and returns the functions in which most of it was spent, and those of ours from
// which most of it was.
func profile(ctx context.Context, socket, program string, length time.Duration) (samples int, flat, cum []spot, err error) {
	file, err := fetchProfile(ctx, socket, length)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("profile: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	text, err := pprof(ctx, "-top", "-nodecount=100000", program, file)
	if err != nil {
		return 0, nil, nil, err
	}
	_, flat = parseTop(text)
	if text, err = pprof(ctx, "-top", "-cum", "-nodecount=100000", program, file); err != nil {
		return 0, nil, nil, err
	}
	_, all := parseTop(text)
	for _, s := range all {
		if strings.Contains(s.Function, "vgpud/vgpud/") || strings.HasPrefix(s.Function, "main.") {
			cum = append(cum, s)
		}
	}
	if text, err = pprof(ctx, "-raw", program, file); err != nil {
		return 0, nil, nil, err
	}
	return countSamples(text), flat[:min(kept, len(flat))], cum[:min(kept, len(cum))], nil
}

// fetchProfile puts the profile into a file.
func fetchProfile(ctx context.Context, socket string, length time.Duration) (path string, err error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	url := fmt.Sprintf("http://vgpud/debug/pprof/profile?seconds=%.0f", length.Seconds())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the agent answers %s", response.Status)
	}
	file, err := os.CreateTemp("", "agentbench-*.pprof")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(file, response.Body)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// pprof runs Go's own tool.
func pprof(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "pprof"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go tool pprof: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// topLine is flat, flat%, sum%, cum, cum%, function.
var topLine = regexp.MustCompile(`^\s*\S+\s+([\d.]+)%\s+[\d.]+%\s+\S+\s+([\d.]+)%\s+(.+)$`)

// parseTop reads what pprof -top prints.
func parseTop(text string) (header []string, spots []spot) {
	for line := range strings.SplitSeq(text, "\n") {
		match := topLine.FindStringSubmatch(line)
		if match == nil {
			header = append(header, line)
			continue
		}
		flat, flatErr := strconv.ParseFloat(match[1], 64)
		cum, cumErr := strconv.ParseFloat(match[2], 64)
		if flatErr == nil && cumErr == nil {
			spots = append(spots, spot{flat, cum, strings.TrimSpace(match[3])})
		}
	}
	return header, spots
}

// countSamples adds up the samples of what pprof -raw prints: lines of "count nanoseconds: addresses".
func countSamples(text string) int {
	sum := 0
	for line := range strings.SplitSeq(text, "\n") {
		values, _, found := strings.Cut(line, ":")
		fields := strings.Fields(values)
		if !found || len(fields) != 2 {
			continue
		}
		count, err := strconv.Atoi(fields[0])
		_, nanoseconds := strconv.Atoi(fields[1])
		if err == nil && nanoseconds == nil {
			sum += count
		}
	}
	return sum
}
