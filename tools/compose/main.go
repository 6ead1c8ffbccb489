// Reads a compose file with compose-go, the parser of `docker compose`, and prints the result as JSON. Also prints which
// of the paths in the arguments the file .dockerignore excludes from the build context of the images.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

type output struct {
	Project  *types.Project `json:"project"`
	Excluded []string       `json:"excluded"`
}

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string, paths []string) error {
	// The project does not depend on environment variables or on a file .env.
	options, err := cli.NewProjectOptions([]string{file})
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	result := output{Project: project, Excluded: []string{}}
	for _, service := range project.Services {
		if service.Build != nil {
			if result.Excluded, err = excluded(service.Build.Context, paths); err != nil {
				return err
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// Returns the paths that are not in the build context. The matcher is the matcher of BuildKit.
func excluded(folder string, paths []string) ([]string, error) {
	file, err := os.Open(filepath.Join(folder, ".dockerignore"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		return nil, err
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, path := range paths {
		matches, err := matcher.MatchesOrParentMatches(path)
		if err != nil {
			return nil, err
		}
		if matches {
			found = append(found, path)
		}
	}
	return found, nil
}
